"""What stands in the way of calls: permissions, rates, organisation policies, places, service accounts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.compute import GROUPS, OPERATIONS, POLICIES, TEMPLATES, Compute, group, policy, template

MakeCompute = Callable[..., Compute]


@pytest.mark.parametrize("code", [403, 429])
def test_rates_are_limited(make_compute: MakeCompute, code: int) -> None:
    """Reads and changes have limits of their own, each project too, and a minute later there is room again."""
    compute = make_compute(reads_per_minute=3, changes_per_minute=1, rate_limit_code=code)
    for _ in range(3):
        compute.get(TEMPLATES)
        compute.clock.advance(1)
    status, answer = compute("GET", TEMPLATES)
    assert (status, answer["error"]["errors"][0]) == (
        code,
        {"message": answer["error"]["message"], "domain": "usageLimits", "reason": "rateLimitExceeded"},
    )
    assert answer["error"]["details"][0]["reason"] == "RATE_LIMIT_EXCEEDED"
    assert compute("POST", TEMPLATES, template())[0] == 200
    assert compute("POST", POLICIES, policy())[0] == code
    assert compute("GET", TEMPLATES.replace("/proj/", "/other/"))[0] == 200
    compute.clock.advance(57)
    assert compute("GET", TEMPLATES)[0] == 200
    assert compute("GET", TEMPLATES)[0] == code


def test_organisation_policies(make_compute: MakeCompute) -> None:
    """A call that one forbids is refused with 412; VMs that one forbids are not made, and the group tells."""
    images, addresses = "constraints/compute.trustedImageProjects", "constraints/compute.vmExternalIpAccess"
    compute = make_compute(violated_constraints={"instanceTemplates.insert": images})
    status, answer = compute("POST", TEMPLATES, template())
    assert (status, answer["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    assert f"{images} violated for project projects/proj" in answer["error"]["message"]
    compute.world.change_settings({"violated_constraints": {"instances.insert": addresses}})
    compute.slice()
    [error] = compute.status()["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"]
    assert error["code"] == "CONDITION_NOT_MET"
    [failed] = [item for item in compute.get(OPERATIONS)["items"] if "error" in item]
    assert (failed["operationType"], failed["httpErrorStatusCode"]) == ("bulkInsert", 412)


@pytest.mark.parametrize(
    ("account", "code", "text"),
    [
        pytest.param("forbidden@x", 400, "does not have access to service account", id="one that is not ours"),
        pytest.param("missing@x", 400, "does not exist", id="one that is not there"),
        pytest.param("default", 400, "does not have access to service account", id="the default one"),
        pytest.param("fine@x", 200, "", id="one that can be used"),
    ],
)
def test_service_accounts(make_compute: MakeCompute, account: str, code: int, text: str) -> None:
    """A group whose VMs could not have their service account is refused."""
    default = "349152590288-compute@developer.gserviceaccount.com"
    compute = make_compute(service_accounts={"forbidden@x": "forbidden", "missing@x": "missing", default: "forbidden"})
    compute.do("POST", POLICIES, policy())
    compute.do("POST", TEMPLATES, template(serviceAccounts=[{"email": account, "scopes": ["s"]}]))
    status, answer = compute("POST", GROUPS, group())
    assert status == code
    assert text in str(answer)
