"""The form of an alert: as a rule for the Prometheus operator, and as a policy of Cloud Monitoring."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.slices.metrics import PREFIX

GROUP = "tpu-provisioner"
RUNBOOKS = Path("docs") / "runbooks"
#: Labels of an installation: one Prometheus or one project may have several.
EACH = "cluster, namespace"
CRITICAL, WARNING = "critical", "warning"
#: Runbooks of alerts that every controller has: the same is to be done.
_SHARED = frozenset({"absent", "no-leader", "loop-stalled", "watch-stale", "decision-faults"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert."""

    name: str
    #: The name of its policy.
    slug: str
    query: str
    #: The query has to hold for so long.
    minutes: int
    severity: str
    summary: str
    description: str
    #: Labels that tell what it is about, beside cluster and namespace.
    labels: tuple[str, ...] = ()

    @property
    def runbook(self) -> str:
        """The name of its page, which may be that of other controllers' alerts too."""
        common = self.slug.partition("-")[2] if self.slug.startswith(("nodegroups-", "partitions-")) else ""
        return common if common in _SHARED else self.slug

    @property
    def what_to_do(self) -> str:
        """Name the page of its runbook, which no link can reach by default."""
        return f"What to do: {RUNBOOKS}/{self.runbook}.md in the repository of tpu-provisioner."

    def json(self, runbooks: str = "") -> dict[str, Any]:
        """Return it as Prometheus has it, with a link where `runbooks` is the URL of their folder."""
        description = f"{self.description} {self.what_to_do}"
        return {
            "alert": self.name,
            "expr": self.query,
            "for": f"{self.minutes}m",
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": _filled(self.summary, "{{ $labels.%s }}", self.labels),
                "description": _filled(description, "{{ $labels.%s }}", self.labels),
                **({"runbook_url": f"{runbooks}/{self.runbook}.md"} if runbooks else {}),
            },
        }

    def policy(self) -> dict[str, Any]:
        """Return it as a policy of Cloud Monitoring."""
        text = _filled(f"{self.summary} {self.description}", "[%s of the incident]", self.labels)
        return {
            "displayName": f"{GROUP}/{self.name}",
            "documentation": {
                "content": f"{text}\n\n{self.what_to_do}",
                "mimeType": "text/markdown",
            },
            "userLabels": {"app": GROUP},
            "severity": self.severity.upper(),
            "combiner": "OR",
            "conditions": [
                {
                    "displayName": f"{GROUP}/{self.name}",
                    "conditionPrometheusQueryLanguage": {
                        "query": self.query,
                        "duration": f"{self.minutes * 60}s",
                        "evaluationInterval": "60s",
                        "ruleGroup": GROUP,
                        "alertRule": self.name,
                    },
                }
            ],
        }


def _filled(text: str, variable: str, labels: tuple[str, ...]) -> str:
    for label in labels:
        text = text.replace(f"<{label}>", variable % label)
    return text


def metric(name: str, *labels: str, function: str = "max", prefix: str = PREFIX, **matchers: str) -> str:
    """Return a query for a metric by installation and labels."""
    chosen = ",".join(f'{label}="{value}"' for label, value in matchers.items())
    return f"{function} by ({', '.join((EACH, *labels))}) ({prefix}{name}{f'{{{chosen}}}' if chosen else ''})"


def gone(prefix: str) -> str:
    """Return a query for what was there within the last day: who has had none for a day has none on purpose."""
    return f"count by ({EACH}) (last_over_time({prefix}build_info[1d])) unless count by ({EACH}) ({prefix}build_info)"
