"""Defines alerts, and converts them to rules of the Prometheus operator and policies of Cloud Monitoring."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.slices.metrics import PREFIX

GROUP = "tpu-provisioner"
RUNBOOKS = Path("docs") / "runbooks"
#: Labels that identify an installation: clusters in different locations or projects may have the same name.
EACH = "project_id, location, cluster, namespace"
#: Sentence in the description of each alert whose query is from the function `gone`.
ENDS = "The alert may end after a day even if none runs."
CRITICAL, WARNING = "critical", "warning"
#: Page of runbooks by the first word of an alert's slug. Other alerts are on the page of node pools.
_PAGES = {"nodegroups": "node-groups", "partitions": "partitions", "webhook": "webhook"}
#: Alerts whose runbook is the same for all controllers, on the page `controllers`. The webhook server has its own.
_SHARED = frozenset({"absent", "no-leader", "loop-stalled", "watch-stale", "decision-faults"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An alert."""

    name: str
    #: Name of the file of the policy. Without the product, it is also the anchor of the runbook.
    slug: str
    query: str
    #: Minutes for which the query has to hold.
    minutes: int
    severity: str
    summary: str
    description: str
    #: Labels that identify the subject of the alert, in addition to cluster and namespace.
    labels: tuple[str, ...] = ()

    @property
    def runbook(self) -> str:
        """Page and anchor of the alert's runbook, such as `node-pools.md#stockout`."""
        product, _, rest = self.slug.partition("-")
        page, anchor = (_PAGES[product], rest) if product in _PAGES else ("node-pools", self.slug)
        if anchor in _SHARED and page != "webhook":
            page = "controllers"
        return f"{page}.md#{anchor}"

    @property
    def what_to_do(self) -> str:
        """Sentence that names the alert's runbook, because the alert has no link by default."""
        return f"What to do: {RUNBOOKS}/{self.runbook} in the repository of tpu-provisioner."

    def json(self, runbooks: str = "") -> dict[str, Any]:
        """Return the rule for Prometheus, with a link if `runbooks` is the URL of the folder of runbooks."""
        description = f"{self.description} {self.what_to_do}"
        return {
            "alert": self.name,
            "expr": self.query,
            "for": f"{self.minutes}m",
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": _filled(self.summary, "{{ $labels.%s }}", self.labels),
                "description": _filled(description, "{{ $labels.%s }}", self.labels),
                **({"runbook_url": f"{runbooks}/{self.runbook}"} if runbooks else {}),
            },
        }

    def policy(self) -> dict[str, Any]:
        """Return the policy for Cloud Monitoring."""
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
                        # Without this field, Cloud Monitoring rejects policies on metrics without samples (reference of
                        # PrometheusQueryLanguageCondition). Many metrics have samples only after an incident.
                        "disableMetricValidation": True,
                    },
                }
            ],
        }


def _filled(text: str, variable: str, labels: tuple[str, ...]) -> str:
    for label in labels:
        text = text.replace(f"<{label}>", variable % label)
    return text


def metric(name: str, *labels: str, function: str = "max", prefix: str = PREFIX, **matchers: str) -> str:
    """Return a query that aggregates a metric by installation and labels."""
    chosen = ",".join(f'{label}="{value}"' for label, value in matchers.items())
    return f"{function} by ({', '.join((EACH, *labels))}) ({prefix}{name}{f'{{{chosen}}}' if chosen else ''})"


def gone(prefix: str) -> str:
    """Return a query for processes that ran within the last day, but not now. Longer absences count as intended."""
    return f"count by ({EACH}) (last_over_time({prefix}build_info[1d])) unless count by ({EACH}) ({prefix}build_info)"
