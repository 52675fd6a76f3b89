"""What engines inherit of the gateway's environment: what they need to run, and no keys."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.engines.environment import inherited


def test_an_engine_gets_what_it_needs_and_no_keys() -> None:
    given = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "LC_ALL": "C", "GGML_METAL": "0"}
    secret = {"OPENAI_API_KEY": "x", "HF_TOKEN": "x", "LLAMA_API_KEY": "x", "HF_HUB_token_file": "x", "OTHER": "x"}
    assert inherited(environ={**given, **secret}) == given


def test_what_config_yaml_names_passes_whatever_it_is_called() -> None:
    assert inherited(["LLAMA_API_KEY", "ABSENT"], {"LLAMA_API_KEY": "x", "OTHER": "y"}) == {"LLAMA_API_KEY": "x"}


def test_folders_of_modules_hold_in_another_working_folder(tmp_path: Path) -> None:
    written = os.pathsep.join(["lib", "", str(tmp_path)])
    found = inherited(environ={"PYTHONPATH": written})["PYTHONPATH"]
    assert found.split(os.pathsep) == [str(Path.cwd() / "lib"), str(tmp_path)]
