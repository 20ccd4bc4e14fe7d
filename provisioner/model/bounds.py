"""How much of what users write is read; what exceeds a bound is not served, and an Event says so (docs/security.md)."""

from __future__ import annotations

# --- single texts, in characters ---
#: Kubernetes' longest label value. Kubernetes does not check node selectors in the templates of custom resources.
LABEL_VALUE = 63
#: Kubernetes' longest label key: a prefix of 253, "/", a name of 63.
LABEL_KEY = 317
#: Kubernetes' longest name of an object.
OBJECT_NAME = 253
#: One of our annotations: several times the longest list of choices that CHOICES allows to be useful.
ANNOTATION = 4096
#: The scheduler's words on a pod: what an Event can show.
SCHEDULER_MESSAGE = 1024
#: A condition's message: the API takes 32,768, and a reader far fewer.
CONDITION_MESSAGE = 2048
#: What an error message quotes of a text that is wrong.
QUOTED = 80

# --- entries of one pod or pod template ---
#: Labels, and entries of nodeSelector: GKE takes 1,024 characters of labels for a node pool.
MAP_ENTRIES = 128
#: A pod has about five; each is compared with each taint that nodes have.
TOLERATIONS = 64
#: Expressions of required node affinity over all terms; each is looked up once for all nodes.
EXPRESSIONS = 64
#: Values of those expressions together: room for a list of a thousand hosts to avoid.
EXPRESSION_VALUES = 1024
#: Characters of labels, selectors, annotations, tolerations and affinity together; a large pod has about 4,000.
REQUIREMENTS = 65_536

# --- entries of one JobSet ---
#: Replicated jobs; JobSets of more than a dozen are not known.
REPLICATED_JOBS = 256
#: Child Jobs with chips: each is a node pool, and a GKE cluster has at most a few thousand.
CHILD_JOBS = 4096
#: Slices of one ProvisioningRequest, whose status names their pools in 32,768 characters, or of a CapacityBuffer. Those
#: of a namespace have as many together as a JobSet has child Jobs.
ASKED_SLICES = 768
#: Pods of one child Job with chips: the largest slice has 2,304 hosts.
PARALLELISM = 65_536
#: Characters of all that is kept of a JobSet, its templates included.
JOBSET = 262_144

# --- all objects of one kind in one namespace; of further ones only their identity is kept ---
#: Bytes of memory: a JobSet takes about 3,000, the largest one 500,000.
NAMESPACE_WORKLOADS = 33_554_432
#: Bytes of memory: a pod takes about 3,000, and GKE has at most 15,000 nodes in most clusters.
NAMESPACE_PODS = 67_108_864
#: ProvisioningRequests, and CapacityBuffers: each round looks at all of them.
NAMESPACE_ASKS = 4096

# --- a TPUNodeGroup and its children ---
#: Machines: the largest slice has 2,304 hosts.
GROUP_NODES = 2304
#: Characters of all finalizers of an object: those of the provisioner have fewer than 200.
FINALIZERS = 4096
#: Entries of metadata: with more, the API server does not accept the rule that counts the bytes of all values.
METADATA_ENTRIES = 64
#: Bytes of one value of metadata, and of all values of a group: Compute Engine takes 262,144 of one. A template has the
#: startup script of the provisioner in addition.
METADATA_VALUE = 262_144
TEMPLATE_METADATA = 2 * METADATA_VALUE
#: Network tags: Compute Engine takes 64. Scopes of a service account: Google has a few hundred, and one is for all.
NETWORK_TAGS = 64
SCOPES = 64
#: Addresses of resources; those of Compute Engine have about 200 characters.
RESOURCE_ADDRESS = 1024
#: Characters of a kubelet's certificate request in base64: one with an RSA key of 4,096 bits and the longest name of a
#: node has about 2,800. A bootstrap token lets a machine send requests of 1 MB, which take 0.5 s to parse.
CERTIFICATE_REQUEST = 4096
#: Conditions of one object, and moments at which a slice was recreated.
CONDITIONS = 16
RECREATIONS = 100

# --- the TPU environment of one pod ---
#: Workers of a slice, each of which is told the host names of all: the largest slice has 9,216 chips.
SLICE_WORKERS = 9216
#: Containers of a pod that request chips; a VM has at most eight chips.
TPU_CONTAINERS = 64
#: Containers of a pod that asks for IPUs, init containers included: each is told the way to them. Pods of more than a
#: few dozen are not known.
IPU_CONTAINERS = 256
#: Characters of one variable with its name: Linux starts no process with a longer one (MAX_ARG_STRLEN, with "=" and a
#: byte at the end).
VARIABLE = 131_072 - 2
#: Characters of all variables of a pod: three of the longest.
VARIABLES = 393_216

# --- the hints, a ConfigMap of at most 1 MiB, keys and values together ---
#: Characters of what is remembered.
HINTS = 786_432
#: Back-off that is kept over a crash, and the characters of GKE's words with each.
HINTED_BACKOFFS = 500
HINTED_WORDS = 512

# --- the metrics ---
#: Namespaces whose use of chips is counted apart, the first that come; all later ones are counted together.
METERED_NAMESPACES = 100
#: Accounts by namespace, accelerator, capacity type and use, besides those of all later namespaces together.
METERED_ACCOUNTS = 1_000

# --- entries of one node or namespace, which only administrators (and the kubelet) write; more are left out ---
CLUSTER_OBJECT_LABELS = 256
NODE_TAINTS = 64

# --- entries of one annotation or setting ---
#: Choices of capacity: five kinds, and a couple of dozen reservations.
CHOICES = 32
#: Zones: a region has a handful.
ZONES = 16
#: Choices times zones: each pair is one possible node pool, and is looked at while no earlier one can be had.
CHOICES_IN_ZONES = 64
#: Additional networks of a node: GKE takes fewer than ten.
NETWORKS = 16
#: Keys of copy-labels.
COPIED_LABELS = 64


def cut(text: str, most: int = QUOTED) -> str:
    """Return the beginning of a text that is longer than `most` characters, with an ellipsis in place of the rest."""
    return text if len(text) <= most else text[: most - 1] + "…"


def size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def quoted(text: str) -> str:
    """Quote a text of any length for a message."""
    return repr(cut(text))


def too_many(what: str, count: int, most: int) -> str:
    """Say that there is more of something than is read."""
    return f"has {count:,} {what}, and at most {most:,} are read; use fewer"


def too_long(what: str, text: str, most: int) -> str:
    """Say that a text is longer than is read."""
    return f"{what} {quoted(text)} has {len(text):,} characters, and at most {most:,} are read; shorten it"
