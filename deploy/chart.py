"""Write the parts of the Helm chart that the code decides: Chart.yaml, values.schema.json.

The schema is made from settings.OPTIONS: names, meaning, defaults, and the form of each value as far as a regular
expression can say it. What several settings say together is checked by the controller alone.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import provisioner
from provisioner.settings import OPTIONS, Option, forms, go_bool, go_duration_seconds

CHART = Path(__file__).parent / "charts" / "tpu-provisioner"
#: The Deployment sets these from the pod itself.
OF_THE_POD = frozenset({"POD_NAMESPACE", "POD_NAME"})
_DURATION = r"^(?:0|\+0|\+?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)?$"
_TEXT_OR_NUMBER = ["string", "integer"]


def files() -> dict[Path, str]:
    """Return the content of every generated file."""
    return {CHART / "Chart.yaml": _chart(), CHART / "values.schema.json": json.dumps(_schema(), indent=2) + "\n"}


def main() -> int:
    """Write the files."""
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
    return 0


def _chart() -> str:
    content = {
        "apiVersion": "v2",
        "name": "tpu-provisioner",
        "description": "Just-in-time TPU node pools for JobSets on Google Kubernetes Engine",
        "type": "application",
        "version": provisioner.__version__,
        "appVersion": provisioner.__version__,
        # ValidatingAdmissionPolicy is generally available from here on.
        "kubeVersion": ">=1.30.0-0",
    }
    return "# Made by `make chart`.\n" + yaml.safe_dump(content, sort_keys=False)


def _schema() -> dict[str, Any]:
    text, flag = {"type": "string"}, {"type": "boolean"}
    free = {"type": "object"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made by `make chart` from provisioner/settings/options.py.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": free,
            "settings": {
                "type": "object",
                "description": "Environment variables of the controller; see docs/settings.md.",
                "additionalProperties": False,
                "properties": {option.variable: _property(option) for option in OPTIONS if _is_offered(option)},
            },
            "image": _closed(
                repository={**text, "minLength": 1},
                tag=text,
                digest={**text, "pattern": "^(?:sha256:[0-9a-f]{64})?$"},
                pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
            ),
            "imagePullSecrets": {"type": "array", "items": free},
            "replicas": {"type": "integer", "minimum": 0},
            "serviceAccount": _closed(annotations={**free, "additionalProperties": text}),
            "podMonitor": _closed(enabled=flag, labels={**free, "additionalProperties": text}),
            "podMonitoring": _closed(enabled=flag),
            "networkPolicy": _closed(enabled=flag),
            "nodeGuard": _closed(enabled=flag),
            "resources": free,
            "nodeSelector": {**free, "additionalProperties": text},
            "tolerations": {"type": "array", "items": free},
            "affinity": free,
            "extraArgs": {"type": "array", "items": text},
        },
    }


def _closed(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _is_offered(option: Option) -> bool:
    return option.variable not in OF_THE_POD


def _property(option: Option) -> dict[str, Any]:
    made: dict[str, Any] = {"description": option.description}
    if option.default:
        made["default"] = option.default
    return made | _form(option)


def _form(option: Option) -> dict[str, Any]:
    if option.read is go_bool:
        return {
            "enum": [True, False, "true", "false", "1", "0", "t", "f", "T", "F", "TRUE", "FALSE", "True", "False", ""]
        }
    if option.read is go_duration_seconds:
        return {"type": _TEXT_OR_NUMBER, "pattern": _DURATION}
    # Which function of settings/forms.py made the reader, and with what: a pattern, bounds or choices.
    maker = option.read.__qualname__.partition(".")[0]
    made_with = inspect.getclosurevars(option.read).nonlocals if inspect.isfunction(option.read) else {}
    match maker:
        case forms.whole_number.__name__:
            # Text comes from --set-string and environments; its range is checked by the controller.
            bounds = {"minimum": made_with["least"], "maximum": made_with["most"]}
            return {"type": _TEXT_OR_NUMBER, "pattern": "^[0-9]*$", **bounds}
        case forms.choice.__name__:
            return {"enum": [*made_with["values"], ""]}
        case forms.matching.__name__:
            return _text(f"{_item(made_with)}?")
        case forms.list_of.__name__ | forms.allowed.__name__:
            return _text(_list(_item(made_with)))
        case forms.amounts.__name__:
            return _text(_list(rf"(?:{_item(made_with)}|\*)\s*=\s*[0-9]+"))
    return {"type": "string"}


def _item(made_with: Mapping[str, Any]) -> str:
    pattern: re.Pattern[str] = made_with["pattern"]
    return f"(?:{pattern.pattern})"


def _list(item: str) -> str:
    return rf"[\s,]*(?:{item}(?:\s*,[\s,]*{item})*[\s,]*)?"


def _text(body: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{body}$"}


if __name__ == "__main__":
    sys.exit(main())
