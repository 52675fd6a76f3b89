"""docs/from-litellm.md: what it turns a proxy's configuration into loads, and means the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.config import ConfigError, load
from tests.conftest import ROOT

PAGE = (ROOT / "docs/from-litellm.md").read_text("utf-8")
THEIRS, OURS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_what_the_page_makes_of_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(OURS)
    config = load(file, {"CLUSTER_KEY": "sk-cluster", "CTXGATE_KEY": "sk-master"})
    theirs = yaml.safe_load(THEIRS)
    (deployment,) = theirs["model_list"]
    asked = deployment["litellm_params"]
    model = config.resolve(deployment["model_name"])
    assert model.upstream_name == asked["model"].partition("/")[2]
    assert f"{model.base_url}/v1" == asked["api_base"]
    assert model.api_key is not None
    assert model.api_key.get_secret_value() == "sk-cluster"
    assert model.defaults == {"temperature": asked["temperature"]}
    assert model.request_timeout == asked["timeout"]
    assert model.retries == theirs["router_settings"]["num_retries"]
    assert [{model.name: [*model.fallbacks]}] == theirs["router_settings"]["fallbacks"]
    assert [key.get_secret_value() for key in config.server.api_keys] == ["sk-master"]


def test_theirs_is_refused_and_keys_of_it_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(THEIRS)
    with pytest.raises(ConfigError, match="unknown key model_list") as caught:
        load(file, {})
    assert 'did you mean "models"?' in str(caught.value)
