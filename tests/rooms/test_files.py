"""A room's files over HTTP, and the folders of this machine that it has mounted."""

from __future__ import annotations

import gc
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gateway.features.agents.settings import RoomMount
from tests.rooms.running import House, calls, house, of_type, speaks


async def upload(rooms: House, room: str, path: str, content: bytes, status: int = 201) -> Any:
    answer = await rooms.http.put(f"/llm/room/{room}/files/{path}", content=content)
    assert answer.status_code == status, answer.text
    return answer.json()


async def names(rooms: House, room: str, query: str = "") -> list[str]:
    found = await rooms.call("GET", f"/llm/room/{room}/files?recursive=true{query}", 200)
    return [entry["path"] for entry in found["entries"]]


async def test_upload_list_get_zip_delete(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent()
        made = await upload(rooms, room, "notes/plan.md", b"# Plan")
        assert (made["data"]["path"], made["data"]["size"]) == ("/notes/plan.md", 6)
        await upload(rooms, room, "notes/plan.md", b"# The plan", 200)
        await upload(rooms, room, "b%C3%A4r", b"\0\1")
        assert await names(rooms, room) == ["/bär", "/notes", "/notes/plan.md"]
        got = await rooms.http.get(f"/llm/room/{room}/files/notes/plan.md")
        assert got.content == b"# The plan"
        assert got.headers["content-type"] == "application/octet-stream"
        assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''plan.md"
        assert got.headers["content-security-policy"] == "sandbox"
        zipped = await rooms.http.get(f"/llm/room/{room}/zip")
        with zipfile.ZipFile(io.BytesIO(zipped.content)) as archive:
            assert archive.namelist() == ["bär", "notes/", "notes/plan.md"]
            assert archive.read("notes/plan.md") == b"# The plan"
        part = await rooms.http.get(f"/llm/room/{room}/zip?path=/notes")
        with zipfile.ZipFile(io.BytesIO(part.content)) as archive:
            assert archive.namelist() == ["plan.md"]
        await rooms.call("DELETE", f"/llm/room/{room}/files/notes?recursive=true", 200)
        assert await names(rooms, room) == ["/bär"]
        missing = await rooms.call("GET", f"/llm/room/{room}/files/nothing", 404)
        assert missing["code"] == "file_not_found"
        other = await rooms.rent()
        assert await names(rooms, other) == []
        await rooms.post(room, "release")
        await rooms.until(room, "room:released")
        refused = await upload(rooms, room, "late", b"x", 409)
        assert refused["code"] == "room_released"
        assert (await rooms.http.get(f"/llm/room/{room}/files/b%C3%A4r")).content == b"\0\1"


@pytest.mark.parametrize("path", ["..%2f..%2fescape", "a/..%2f..%2f..%2fescape", "x%00y", "link/file", "link"])
async def test_nothing_leads_out(tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    state = tmp_path / "state"
    async with house(state, speaks("Hi")) as rooms:
        room = await rooms.rent()
        await upload(rooms, room, "a/b", b"x")
        (folder,) = (state / "rooms/files").iterdir()
        (folder / "link").symlink_to(outside)
        for method in ("GET", "PUT"):
            answer = await rooms.http.request(method, f"/llm/room/{room}/files/{path}", content=b"y")
            assert answer.status_code in (400, 404, 409), answer.text
            assert "secret" not in answer.text
        zipped = await rooms.http.get(f"/llm/room/{room}/zip")
        assert b"secret" not in zipped.content
        assert zipped.headers["x-ctxgate-skipped"] == "1"
    assert sorted(path.name for path in outside.iterdir()) == ["file"]
    assert (outside / "file").read_text() == "secret"


async def test_zips_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(tmp_path, speaks("Hi")) as rooms:
        room = await rooms.rent()
        await upload(rooms, room, "file", b"x" * 1000)
        for _ in range(9):  # each gives its place back
            assert (await rooms.http.get(f"/llm/room/{room}/zip")).status_code == 200
            gc.collect()
        monkeypatch.setattr("gateway.features.rooms.files.ZIP_BYTES", 999)
        refused = await rooms.call("GET", f"/llm/room/{room}/zip", 400)
        assert refused["code"] == "file_too_large"
        monkeypatch.setattr("gateway.features.rooms.files.ZIPS", 0)
        refused = await rooms.call("GET", f"/llm/room/{room}/zip", 409)
        assert refused["code"] == "file_busy"


async def test_an_upload_over_the_quota_leaves_nothing(tmp_path: Path) -> None:
    from gateway.features.agents.settings import RoomTools

    async with house(tmp_path, speaks("Hi"), tools=RoomTools(files_max_bytes=10)) as rooms:
        room = await rooms.rent()
        refused = await upload(rooms, room, "large", b"x" * 11, 413)
        assert refused["code"] == "file_quota_exceeded"
        assert await names(rooms, room) == []


async def test_mounted_folders(tmp_path: Path) -> None:
    host, shared, state = tmp_path / "host", tmp_path / "shared", tmp_path / "state"
    for folder in (host, shared):
        folder.mkdir()
        (folder / "file.txt").write_text("from outside")
    (host / "escape").symlink_to(tmp_path)
    os.link(host / "file.txt", host / "hard")
    mounts = {
        "docs": RoomMount(path=host),
        "work": RoomMount(path=shared, access="edit", quota_count=3),
        "acme": RoomMount(path=host, tenants=("acme",)),
    }
    scripts = (
        calls(("tool_ls", {"path": "/mnt/docs"}), ("tool_rm", {"path": "/mnt/docs/file.txt"})),
        calls(("tool_mkdir", {"path": "/mnt/work/made"}), ("tool_cat", {"path": "/mnt/docs/escape/x"})),
        speaks("Done."),
    )
    async with house(state, *scripts, mounts=mounts) as rooms:
        refused = await rooms.call("POST", "/llm/room", 400, {"mounts": ["acme"]})
        assert refused["code"] == "mount_unknown"
        room = await rooms.rent(mounts=["docs", "work"], tool_policy={"access": "edit"})
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        listed, removed, made, escaped = (
            event["result"] for event in of_type(await rooms.history(room), "tool:result")
        )
        assert [entry["path"] for entry in listed["entries"]] == [
            *("/mnt/docs/escape", "/mnt/docs/file.txt", "/mnt/docs/hard"),
        ]
        assert removed["error"]["code"] == "read_only"
        assert made == {"path": "/mnt/work/made", "created": True}
        assert escaped["error"]["code"] == "path_refused"
        assert (shared / "made").is_dir()
        assert (await upload(rooms, room, "mnt/docs/new", b"x", 403))["code"] == "file_read_only"
        await upload(rooms, room, "mnt/work/new", b"x")
        assert (await upload(rooms, room, "mnt/work/more", b"x", 413))["code"] == "file_quota_exceeded"
        assert (await upload(rooms, room, "mnt/other/x", b"x", 404))["code"] == "file_not_found"
        assert (await upload(rooms, room, "mnt", b"x", 400))["code"] == "file_path_refused"
        hard = await rooms.http.get(f"/llm/room/{room}/files/mnt/docs/hard")
        assert hard.status_code == 400
        assert await names(rooms, room, "&path=/mnt/work") == ["/mnt/work/file.txt", "/mnt/work/made", "/mnt/work/new"]
        assert "/mnt" in await names(rooms, room)
        # Without the mount, the room has no such folder.
        await rooms.call("PATCH", f"/llm/room/{room}", 200, {"mounts": []})
        assert await names(rooms, room) == []
    assert sorted(path.name for path in host.iterdir()) == ["escape", "file.txt", "hard"]
