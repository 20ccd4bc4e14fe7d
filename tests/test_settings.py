"""Tests of settings: defaults, accepted forms, warnings, and one error with all mistakes."""

from __future__ import annotations

import pytest

from provisioner.model.capacity import CapacityKind, Network, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.settings import OPTIONS, SettingsError, read_settings, warnings_about
from provisioner.settings.forms import Prices, go_bool, go_duration_seconds, parse_prices
from tests.support.settings import REQUIRED


def problems(**environment: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        read_settings(REQUIRED | environment)
    return caught.value.problems


def test_empty_default_is_none_or_is_documented() -> None:
    """None means no limit, no label, or Google's default; docs/settings.md has all other defaults."""
    effective = read_settings(REQUIRED)
    empty = {option.field: getattr(effective, option.field) for option in OPTIONS if option.default == ""}
    assert {name for name, value in empty.items() if value is None} == {
        *(
            "opt_in_label",
            "node_disk_gb",
            "node_disk_size_gb",
            "node_max_run_seconds",
            "max_chips",
            "max_pools_per_jobset",
            "max_creates_per_hour",
        ),
        *("allowed_namespaces", "allowed_reservations", "allowed_service_accounts", "allowed_networks"),
        "allowed_label_keys",
    }
    assert {*empty.values()} == {None, "", (), Prices()}


def test_all_mistakes_are_in_one_error() -> None:
    """A user should not have to start the provisioner once per mistake."""
    with pytest.raises(SettingsError) as caught:
        read_settings({"GCP_ZONE": "nowhere", "CONCURRENCY": "0", "NODE_MIN_LIFESPAN": "10"})
    text = str(caught.value)
    assert text.startswith("6 settings are missing or invalid:")
    for word in ("GCP_PROJECT_ID is not set", "GCP_CLUSTER is not set", "GCP_CLUSTER_LOCATION is not set"):
        assert word in text
    for word in ("GCP_ZONE='nowhere'", "CONCURRENCY='0' is not a whole number from 1 to 64", "NODE_MIN_LIFESPAN='10'"):
        assert word in text


def test_missing_variable_is_inferred() -> None:
    """The environment takes precedence over the metadata server. Blank values count as missing."""
    inferred = {**REQUIRED, "GCP_CLUSTER": "inferred-cluster", "GCP_PROJECT_ID": "inferred-project"}
    read = read_settings({"GCP_PROJECT_ID": "own-project", "GCP_CLUSTER": "  "}, inferred=inferred)
    assert (read.project_id, read.cluster) == ("own-project", "inferred-cluster")


_ON_GCE = {
    "PROVIDER": "gce",
    "GCP_PROJECT_ID": "a-project",
    "GCP_ZONE": "us-east5-a",
    "NODE_GROUP_IMAGES": "*=projects/p/global/images/i",
}


def test_cluster_without_gke_gets_a_default_name_and_location() -> None:
    """Without GCP_CLUSTER_LOCATION, the location is the region of the zone."""
    read = read_settings(_ON_GCE)
    assert (read.on_gce, read.cluster, read.cluster_location) == (True, "kubernetes", "us-east5")
    without_zone = {name: value for name, value in _ON_GCE.items() if name != "GCP_ZONE"}
    assert read_settings(without_zone, inferred={"GCP_ZONE": "us-east1-d"}).cluster_location == "us-east1"
    named = read_settings({**_ON_GCE, "GCP_CLUSTER": "mine", "GCP_CLUSTER_LOCATION": "us-east5"})
    assert named.cluster == "mine"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"NODE_GROUP_IMAGES": ""}, "NODE_GROUP_IMAGES is not set"),
        ({"GCP_NODE_SECONDARY_DISK": "d"}, "GCP_NODE_SECONDARY_DISK is set, and TPUNodeGroups cannot have it"),
        ({"GCP_NODE_ADDITIONAL_NETWORKS": "a:b"}, "GCP_NODE_ADDITIONAL_NETWORKS is set"),
        ({"GCP_NODE_CONFIDENTIAL_STORAGE": "true"}, "GCP_NODE_CONFIDENTIAL_STORAGE is set"),
        ({"GCP_NODE_BOOT_DISK_KMS_KEY": "k"}, "GCP_NODE_BOOT_DISK_KMS_KEY is set"),
        ({"NODEPOOL_IDLE_MAINTENANCE": "10m"}, "NODEPOOL_IDLE_MAINTENANCE is set"),
        ({"ZONES": "us-east1-d"}, "ZONES='us-east1-d' is not in"),
    ],
)
def test_option_that_needs_gke_is_rejected_without_it(changes: dict[str, str], words: str) -> None:
    """Otherwise machines would lack the feature without any message."""
    with pytest.raises(SettingsError, match=words):
        read_settings({**_ON_GCE, **changes})


@pytest.mark.parametrize(
    ("variable", "text", "field", "want"),
    [
        ("GCP_PROJECT_ID", "example.com:a-project", "project_id", "example.com:a-project"),
        ("GCP_ZONE", "us-central2-ai1a", "zone", "us-central2-ai1a"),
        ("GCP_CLUSTER_LOCATION", "us-central2-c", "cluster_location", "us-central2-c"),
        ("GCP_NODE_TAGS", " a-tag, b ,", "node_tags", ("a-tag", "b")),
        ("GCP_POD_TO_NODE_LABELS", "team,example.com/cost", "pod_to_node_labels", ("team", "example.com/cost")),
        ("GCP_NODE_SECURE_BOOT", "F", "node_secure_boot", False),
        (
            "GCP_NODE_ADDITIONAL_NETWORKS",
            "vpc1:subnet1, vpc2:subnet2",
            "node_additional_networks",
            (Network(network="vpc1", subnetwork="subnet1"), Network(network="vpc2", subnetwork="subnet2")),
        ),
        ("NODEPOOL_DELETION_DELAY", "1m30s", "deletion_delay_seconds", 90.0),
        ("PROVIDER", "gke", "cluster", "test"),
        ("PROVIDER", "GKE", "provider", "gke"),
        (
            "NODE_GROUP_IMAGES",
            "tpu-v6e-slice=projects/p/global/images/family/six, *=https://x/compute/v1/projects/p/global/images/i",
            "node_images",
            (
                ("tpu-v6e-slice", "projects/p/global/images/family/six"),
                ("*", "https://x/compute/v1/projects/p/global/images/i"),
            ),
        ),
        (
            "NODE_GROUP_SUBNETWORK",
            "projects/host/regions/us-central2/subnetworks/tpus",
            "node_subnetwork",
            "projects/host/regions/us-central2/subnetworks/tpus",
        ),
        ("GKE_ENDPOINT", "http://127.0.0.1:8085/", "gke_endpoint", "http://127.0.0.1:8085"),
        ("GKE_ENDPOINT", "http://[::1]:8085", "gke_endpoint", "http://[::1]:8085"),
        ("GKE_ENDPOINT", "https://gke.example.com/", "gke_endpoint", "https://gke.example.com"),
        ("OPT_IN_LABEL", "team=ml", "opt_in_label", ("team", "ml")),
        ("OPT_IN_LABEL", "example.com/tpu=", "opt_in_label", ("example.com/tpu", "")),
        ("SINGLE_HOST_PLACEMENT", "compact", "single_host_placement", True),
        ("NODEPOOL_AUTO_UPGRADE", "auto", "auto_upgrade", None),
        ("NODEPOOL_AUTO_UPGRADE", "on", "auto_upgrade", True),
        ("NODEPOOL_AUTO_UPGRADE", "off", "auto_upgrade", False),
        (
            "GCP_NODE_OAUTH_SCOPES",
            "https://www.googleapis.com/auth/devstorage.read_only, https://www.googleapis.com/auth/logging.write",
            "node_oauth_scopes",
            ("https://www.googleapis.com/auth/devstorage.read_only", "https://www.googleapis.com/auth/logging.write"),
        ),
        ("LOG_LEVEL", "Debug", "log_level", "debug"),
        (
            "CAPACITY",
            "spot@us-central2-a, reservation/r1",
            "capacity",
            (
                CapacityChoice(kind=CapacityKind.SPOT, zone=Zone("us-central2-a")),
                CapacityChoice(kind=CapacityKind.RESERVATION, reservation="r1"),
            ),
        ),
        ("MAX_RUN_DURATION", "10m", "max_run_seconds", 600.0),
        ("MAX_RUN_DURATION", "168h", "max_run_seconds", 604800.0),
        ("MAX_RUN_DURATION", "0", "max_run_seconds", 0.0),
        ("MAX_CHIPS", "0", "max_chips", 0),
        (
            "MAX_CHIPS_PER_NAMESPACE",
            "team-a=512, team-b = 64,*=16,",
            "max_chips_per_namespace",
            (("team-a", 512), ("team-b", 64), ("*", 16)),
        ),
        (
            "MAX_REQUESTED_CHIPS_PER_NAMESPACE",
            "team-a=4096",
            "max_requested_chips_per_namespace",
            (("team-a", 4096),),
        ),
        (
            "MAX_CHIPS_PER_ACCELERATOR",
            "tpu-v5p-slice=1024, tpu9x=8, *=0",
            "max_chips_per_accelerator",
            # A generation that the built-in table lacks is accepted, because the cluster may have it.
            (("tpu-v5p-slice", 1024), ("tpu9x", 8), ("*", 0)),
        ),
        ("ALLOWED_RESERVATIONS", "r1, other-project/r2", "allowed_reservations", ("r1", "other-project/r2")),
        ("ALLOWED_RESERVATIONS", " none ", "allowed_reservations", ()),
        ("ALLOWED_RESERVATIONS", "none, r1", "allowed_reservations", ("none", "r1")),
        ("ALLOWED_LABEL_KEYS", "team, example.com/*, *", "allowed_label_keys", ("team", "example.com/*", "*")),
        (
            "CHIP_HOUR_PRICES",
            "tpu-v6e-slice/spot = 1.35, tpu-v6e-slice=2.7,*=3,",
            "prices",
            Prices(
                entries=(("tpu-v6e-slice", "spot", 1_350_000), ("tpu-v6e-slice", "", 2_700_000), ("*", "", 3_000_000))
            ),
        ),
    ],
)
def test_option_is_read(variable: str, text: str, field: str, want: object) -> None:
    assert getattr(read_settings(REQUIRED | {variable: text}), field) == want


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("GCP_PROJECT_ID", "Nope", "is not a Google Cloud project id"),
        ("GCP_CLUSTER", "-x", "is not a GKE cluster name"),
        ("GCP_NODE_SERVICE_ACCOUNT", "somebody", "e-mail address"),
        ("GCP_NODE_TAGS", "ok,Not_ok", "has 'Not_ok', which is not a network tag"),
        ("GCP_NODE_SECURE_BOOT", "yes", "is neither true nor false"),
        ("GCP_NODE_ADDITIONAL_NETWORKS", "vpc1", "has 'vpc1', which is not of the form"),
        ("GCP_NODE_ADDITIONAL_NETWORKS", "vpc1:", "has 'vpc1:', which is not of the form"),
        ("CONCURRENCY", "0", "is not a whole number from 1 to 64"),
        ("CONCURRENCY", "²", "is not a whole number"),
        ("GKE_ENDPOINT", "http://simulator:8085", "use https, or http to an address of this machine"),
        ("GKE_ENDPOINT", "http://10.0.0.1", "use https, or http to an address of this machine"),
        ("GKE_ENDPOINT", "HTTP://localhost.example.com", "use https, or http to an address of this machine"),
        ("GKE_ENDPOINT", "http://127.0.0.1.nip.io", "use https, or http to an address of this machine"),
        ("GKE_ENDPOINT", "http://[2001:db8::1]:80", "use https, or http to an address of this machine"),
        ("OPT_IN_LABEL", "team", "is not a label of the form"),
        ("OPT_IN_LABEL", "team=a b", "is not a label of the form"),
        ("SERVED_NAMESPACES", "UPPER", "has 'UPPER', which is not a namespace name"),
        ("SINGLE_HOST_PLACEMENT", "maybe", "is not one of none, compact"),
        ("NODEPOOL_AUTO_UPGRADE", "maybe", "is not one of auto, on, off"),
        ("GCP_NODE_OAUTH_SCOPES", "cloud-platform", "which is not an OAuth scope such as https://www.googleapis.com"),
        ("PROVIDER", "Mock", "is not one of gke, gce"),
        ("PROVIDER", "aws", "is not one of gke, gce"),
        ("NODE_GROUP_IMAGES", "v6e", "is not of the form"),
        ("NODE_GROUP_IMAGES", "*=projects/p/global/images/i, *=projects/p/global/images/j", "names '*' twice"),
        ("NODE_GROUP_IMAGES", "tpu-v9=projects/p/global/images/i", "cannot be used"),
        ("NODE_GROUP_IMAGES", "*=an image", "is not an image"),
        ("NODE_GROUP_SUBNETWORK", "a b", "is not the name or the path of a subnetwork"),
        ("NODE_GROUP_DISK_GB", "5", "10"),
        ("POD_RESOURCE_TYPE", "nvidia.com/gpu", "is not one of google.com/tpu"),
        ("GCP_ZONE", "us-central2", "is a region; set a zone in it, such as us-central2-b"),
        ("GCP_ZONE", "us-east5-a", "is not in GCP_CLUSTER_LOCATION='us-central2'"),
        ("ZONES", "us-central2", "has 'us-central2', which is not a zone such as"),
        ("ZONES", "us-east5-a", "is not in GCP_CLUSTER_LOCATION='us-central2'; name only zones in us-central2."),
        ("CAPACITY", "cheap", "has 'cheap', which is not one of on-demand, spot"),
        ("MAX_RUN_DURATION", "1d", "is not a duration"),
        ("MAX_CHIPS", "-1", "is not a whole number from 0"),
        ("MAX_CHIPS_PER_NAMESPACE", "512", "has '512', which is not a namespace name (or \"*\" for all others)"),
        ("MAX_CHIPS_PER_NAMESPACE", "a=1,a=2", "names 'a' twice"),
        ("MAX_CHIPS_PER_NAMESPACE", "team-*=1", "has 'team-*=1', which is not a namespace name"),
        (
            "MAX_CHIPS_PER_ACCELERATOR",
            "tpu-v6-slice=1",
            "cannot be used: there is no TPU accelerator 'tpu-v6-slice' (did you mean tpu-v6e-slice",
        ),
        ("MAX_CREATES_PER_HOUR", "10000001", "is not a whole number from 0 to 10000000"),
        ("ALLOWED_NAMESPACES", "*-team", "has '*-team', which is not a namespace name, or its beginning and *"),
        ("ALLOWED_RESERVATIONS", "r 1", "has 'r 1', which is not a reservation"),
        ("ALLOWED_LABEL_KEYS", "a=b", "has 'a=b', which is not a label key"),
        ("CHIP_HOUR_PRICES", "1.35", 'has \'1.35\', which is not "ACCELERATOR=PRICE" or "ACCELERATOR/CAPACITY=PRICE"'),
        ("CHIP_HOUR_PRICES", "TPU=1", "has 'TPU=1', which is not \"ACCELERATOR=PRICE\""),
        (
            "CHIP_HOUR_PRICES",
            "*=3, tpu-v5-slice/spot=1.35",
            "cannot be used: there is no TPU accelerator 'tpu-v5-slice' (did you mean tpu-v5p-slice",
        ),
        ("CHIP_HOUR_PRICES", "tpu7x/cheap=1", "where 'cheap' is not a capacity type: reservation, on-demand, spot"),
        ("CHIP_HOUR_PRICES", "tpu7x=1,5", "has '5', which is not"),
        ("CHIP_HOUR_PRICES", "tpu7x=$1", "where '$1' is not a price from 0 to 999999 with at most six decimals"),
        ("CHIP_HOUR_PRICES", "tpu7x/spot=1, tpu7x/spot=2", "names 'tpu7x/spot' twice"),
        ("CHIP_HOUR_PRICES", "*=1, currency=usd", "has currency twice, or not as three capital letters"),
        ("CHIP_HOUR_PRICES", "currency=USD, *=1, currency=EUR", "has currency twice, or not as three capital letters"),
    ],
)
def test_error_has_the_variable_its_value_and_the_mistake(variable: str, text: str, words: str) -> None:
    found = problems(**{variable: text})
    assert len(found) == 1
    assert variable in found[0]
    assert repr(text) in found[0]
    assert words in found[0]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("https://me:pa55word@gke.example.com", id="user and password"),
        pytest.param("http://pa55word@127.0.0.1:8085", id="a user on this machine"),
        pytest.param("https://gke.example.com?key=pa55word", id="a query"),
        pytest.param("https://gke.example.com/?key=pa55word", id="a query after a slash"),
        pytest.param("https://gke.example.com#pa55word", id="a fragment"),
        pytest.param("https://gke.example.com/pa55word", id="a path"),
        pytest.param("https://gke.example.com\\@pa55word", id="a backslash"),
        pytest.param("https://gke.example.com:70000", id="a port that does not exist"),
        pytest.param("ftp://pa55word", id="another scheme"),
        pytest.param("127.0.0.1:8085", id="no scheme"),
        pytest.param("https://gke.example.com\n.pa55word", id="two lines"),
    ],
)
def test_invalid_endpoint_is_rejected_without_showing_it(text: str) -> None:
    (found,) = problems(GKE_ENDPOINT=text)
    assert found.startswith("GKE_ENDPOINT is not an address of only scheme, host and port,")
    assert "pa55word" not in found
    assert "gke.example.com" not in found


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("MAX_RUN_DURATION", "9m59s", "MAX_RUN_DURATION is 599 s; set 10 minutes to 7 days, or 0"),
        ("MAX_RUN_DURATION", "168h1s", "MAX_RUN_DURATION is 604801 s; set 10 minutes to 7 days, or 0"),
        ("CAPACITY", "on-demand, spot@us-east5-a", "CAPACITY names spot in us-east5-a, which is not in GCP_CLUSTER_"),
    ],
)
def test_value_that_contradicts_others_is_reported(variable: str, text: str, words: str) -> None:
    """The start fails, so that the mistake is reported before a pod is affected."""
    (found,) = problems(**{variable: text})
    assert words in found


_CLOSED = {
    "ALLOWED_RESERVATIONS": "r1",
    "ALLOWED_SERVICE_ACCOUNTS": "none",
    "ALLOWED_NETWORKS": "none",
    "ALLOWED_LABEL_KEYS": "none",
    "MAX_CHIPS": "0",
}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ["ALLOWED_RESERVATIONS, ALLOWED_SERVICE_ACCOUNTS, ALLOWED_NETWORKS, ALLOWED_LABEL_KEYS", "MAX_CHIPS"]),
        ({"ALLOWED_NETWORKS": "none"}, ["ALLOWED_SERVICE_ACCOUNTS, ALLOWED_LABEL_KEYS not set", "MAX_CHIPS"]),
        (_CLOSED, []),
        ({**_CLOSED, "PAUSE_CREATION": "true"}, ["PAUSE_CREATION is set"]),
        (
            {**_CLOSED, "GCP_NODE_OAUTH_SCOPES": "https://www.googleapis.com/auth/logging.write"},
            ["GCP_NODE_OAUTH_SCOPES has none of cloud-platform, devstorage.read_only"],
        ),
    ],
    ids=["nothing set", "one set", "all set", "paused", "scopes without images"],
)
def test_missing_restrictions_cause_a_warning(environment: dict[str, str], words: list[str]) -> None:
    found = tuple(warnings_about(read_settings(REQUIRED | environment)))
    assert len(found) == len(words)
    for warning, word in zip(found, words, strict=True):
        assert word in warning
        for variable in environment:
            assert variable in word or variable not in warning


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("+0", 0),
        ("10s", 10),
        ("1m30s", 90),
        ("2h", 7200),
        ("1h2m3s", 3723),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("100ms", 0.1),
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("7ns", 7e-9),
        ("+3s", 3),
        ("1s1s", 2),
    ],
)
def test_durations_are_read_as_in_go(text: str, seconds: float) -> None:
    """Manifests of the Go provisioner need no change."""
    assert go_duration_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "-5s", "s", "1 s", "1d", "1m30", "ten", "1e3s", "1s ", "293000h" * 9, "9" * 400 + "h"]
)
def test_invalid_duration_is_rejected(text: str) -> None:
    """Negative delays would delete pools by mistake, and endless delays would keep them."""
    with pytest.raises(ValueError, match=r"is not a duration|longer than any duration"):
        go_duration_seconds(text)


@pytest.mark.parametrize(
    ("text", "want"),
    [(text, True) for text in ("1", "t", "T", "true", "TRUE", "True")]
    + [(text, False) for text in ("0", "f", "F", "false", "FALSE", "False")],
)
def test_booleans_are_read_as_in_go(text: str, want: bool) -> None:
    """The values are those of strconv.ParseBool."""
    assert go_bool(text) is want


@pytest.mark.parametrize("text", ["", "yes", "on", "tRUE", " true"])
def test_invalid_boolean_is_rejected(text: str) -> None:
    """A typing error must not disable secure boot."""
    with pytest.raises(ValueError, match="neither true nor false"):
        go_bool(text)


@pytest.mark.parametrize(
    ("accelerator", "capacity", "want"),
    [
        pytest.param("tpu-v6e-slice", CapacityKind.SPOT, 1_350_000, id="accelerator and capacity type"),
        pytest.param("tpu-v6e-slice", CapacityKind.RESERVATION, 2_000_000, id="the accelerator before any reservation"),
        pytest.param("tpu7x", CapacityKind.RESERVATION, 4_000_000, id="any reservation"),
        pytest.param("tpu7x", CapacityKind.SPOT, 5, id="anything"),
    ],
)
def test_most_specific_price_counts(accelerator: str, capacity: CapacityKind, want: int) -> None:
    """The order is: accelerator and capacity type, only the accelerator, only the capacity type, neither."""
    prices = parse_prices("tpu-v6e-slice/spot=1.35, tpu-v6e-slice=2, */reservation=4, *=0.000005")
    assert prices.per_hour(accelerator, capacity, 1_000_000) == want


def test_capacity_without_a_price_has_none() -> None:
    """An unknown price differs from a price of zero."""
    assert parse_prices("tpu7x/spot=0").per_hour("tpu7x", CapacityKind.ON_DEMAND, 1) is None
    assert parse_prices("tpu7x/spot=0").per_hour("tpu7x", CapacityKind.SPOT, 1) == 0
    assert not Prices()


@pytest.mark.parametrize(
    ("served", "groups_in", "warned"),
    [
        pytest.param("", "slices", False, id="all namespaces are served"),
        pytest.param("team-a", "", False, id="groups in the own namespace, which is always served"),
        pytest.param("team-a, slices", "slices", False, id="namespace of the groups is served"),
        pytest.param("team-a", "slices", True, id="namespace of the groups is not served"),
    ],
)
def test_unserved_namespace_of_node_groups_causes_a_warning(served: str, groups_in: str, *, warned: bool) -> None:
    environment = {**_ON_GCE, **_CLOSED, "SERVED_NAMESPACES": served, "NODE_GROUP_NAMESPACE": groups_in}
    found = tuple(warnings_about(read_settings(environment)))
    assert [text for text in found if "NODE_GROUP_NAMESPACE=slices" in text] == list(found)
    assert bool(found) is warned
