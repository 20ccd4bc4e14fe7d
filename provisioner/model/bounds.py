"""Limits on user input. An object that exceeds a limit is not served, and an Event reports it (docs/security.md)."""

# --- single texts, in characters ---
#: Kubernetes' longest label value. Kubernetes does not check node selectors in the templates of custom resources.
LABEL_VALUE = 63
#: Kubernetes' longest label key: a prefix of 253, "/", a name of 63.
LABEL_KEY = 317
#: Kubernetes' longest name of an object.
OBJECT_NAME = 253
#: Characters of an annotation of the provisioner: several times those of the longest list that CHOICES allows.
ANNOTATION = 4096
#: Characters of the scheduler's message about a pod: as many as fit into an Event.
SCHEDULER_MESSAGE = 1024
#: Characters of the message of a condition. The API accepts 32,768.
CONDITION_MESSAGE = 2048
#: Characters of an invalid text that an error message quotes.
QUOTED = 80

# --- entries of one pod or pod template ---
#: Number of labels, and of entries of nodeSelector. GKE accepts 1,024 characters of labels for a node pool.
MAP_ENTRIES = 128
#: Number of tolerations. A pod has about five, and each is compared with every taint of the nodes.
TOLERATIONS = 64
#: Number of volumes. A machine attaches at most 128 disks.
VOLUMES = 256
#: Number of expressions in all terms of required node affinity. Each is evaluated once for all nodes.
EXPRESSIONS = 64
#: Number of values of all these expressions: enough for a list of 1,000 excluded hosts.
EXPRESSION_VALUES = 1024
#: Characters of labels, selectors, annotations, tolerations and affinity together. A large pod has about 4,000.
REQUIREMENTS = 65_536

# --- entries of one JobSet ---
#: Number of replicated jobs. Known JobSets have at most a dozen.
REPLICATED_JOBS = 256
#: Number of child Jobs with chips. Each is a node pool, and a GKE cluster has at most a few thousand.
CHILD_JOBS = 4096
#: Slices of one ProvisioningRequest, whose status names their pools in 32,768 characters, or of a CapacityBuffer. All
#: these objects of a namespace together may have CHILD_JOBS slices.
ASKED_SLICES = 768
#: Number of pods of one child Job with chips. The largest slice has 2,304 hosts.
PARALLELISM = 65_536
#: Characters of all kept fields of a JobSet, including its templates.
JOBSET = 262_144

# --- all objects of one kind in one namespace; only the identity of further objects is kept ---
#: Bytes of memory. A JobSet takes about 3,000, the largest one 500,000.
NAMESPACE_WORKLOADS = 33_554_432
#: Bytes of memory. A pod takes about 3,000, and GKE has at most 15,000 nodes in most clusters.
NAMESPACE_PODS = 67_108_864
#: Bytes of memory. A PersistentVolumeClaim takes about 300.
NAMESPACE_CLAIMS = 4_194_304
#: Number of ProvisioningRequests, and of CapacityBuffers. Each round processes all of them.
NAMESPACE_ASKS = 4096
#: Number of nodes of a pool that single pods share: a larger pool would rarely become empty.
SHARED_POOL_NODES = 16

# --- a TPUNodeGroup and its children ---
#: Number of machines. The largest slice has 2,304 hosts.
GROUP_NODES = 2304
#: Characters of all finalizers of an object. The finalizers of the provisioner have fewer than 200.
FINALIZERS = 4096
#: Bytes of one value of metadata, and of all values of a group. Compute Engine accepts 262,144 bytes per value. A
#: template also contains the provisioner's startup script.
METADATA_VALUE = 262_144
#: Number of network tags. Compute Engine accepts 64.
NETWORK_TAGS = 64
#: Characters of a kubelet's certificate request in base64. One with an RSA key of 4,096 bits and the longest node name
#: has about 2,800. A bootstrap token allows requests of 1 MB, which take 0.5 s to parse.
CERTIFICATE_REQUEST = 4096
#: Number of certificate requests of one bootstrap token, which is valid for 30 minutes. `kubeadm join` waits 5 minutes
#: for each.
CERTIFICATE_REQUESTS = 16
#: Number of conditions of one object, and of recorded times at which a slice was recreated.
CONDITIONS = 16
RECREATIONS = 100

# --- the TPU environment of one pod ---
#: Number of workers of a slice. Each worker gets the host names of all workers. The largest slice has 9,216 chips.
SLICE_WORKERS = 9216
#: Number of containers of a pod that request chips. A VM has at most eight chips.
TPU_CONTAINERS = 64
#: Containers of a pod that requests IPUs, including init containers. Each gets the address of the partition. Known pods
#: have at most a few dozen.
IPU_CONTAINERS = 256
#: Characters of one variable and its name. Linux starts no process with a longer variable: MAX_ARG_STRLEN also counts
#: "=" and a byte at the end.
VARIABLE = 131_072 - 2
#: Characters of all variables of a pod: three of maximum length.
VARIABLES = 393_216

# --- the hints, a ConfigMap of at most 1 MiB, keys and values together ---
#: Characters of all hints.
HINTS = 786_432
#: Back-offs that are saved for the next process, and characters of GKE's message in each.
HINTED_BACKOFFS = 500
HINTED_WORDS = 512

# --- the metrics ---
#: Namespaces whose use of chips is counted separately: the first to use any. The others are counted together.
METERED_NAMESPACES = 100
#: Accounts by namespace, accelerator, capacity type and use, without the common account of later namespaces.
METERED_ACCOUNTS = 1_000

# --- entries of one node or namespace; only administrators and the kubelet write them; the rest is ignored ---
CLUSTER_OBJECT_LABELS = 256
NODE_TAINTS = 64

# --- entries of one annotation or setting ---
#: Number of capacity choices. There are four kinds, and users have a few dozen reservations at most.
CHOICES = 32
#: Number of zones. A region has a handful of them.
ZONES = 16
#: Number of pairs of choice and zone. A decision checks the pairs in order until the pool of one is available.
CHOICES_IN_ZONES = 64
#: Number of additional networks of a node. GKE accepts fewer than ten.
NETWORKS = 16
#: Number of entries of a list of node settings, such as taints.
NODE_ENTRIES = 64
#: Number of keys in copy-labels.
COPIED_LABELS = 64


def cut(text: str, most: int = QUOTED) -> str:
    """Return a text; if it is longer than `most` characters, cut it, with an ellipsis as the last character."""
    return text if len(text) <= most else text[: most - 1] + "…"


def size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def quoted(text: str) -> str:
    """Quote a text of any length for a message."""
    return repr(cut(text))


def too_many(what: str, count: int, most: int) -> str:
    """Return a message that a count exceeds its limit."""
    return f"has {count:,} {what}, and at most {most:,} are read; use fewer"


def too_long(what: str, text: str, most: int) -> str:
    """Return a message that a text exceeds its limit."""
    return f"{what} {quoted(text)} has {len(text):,} characters, and at most {most:,} are read; shorten it"
