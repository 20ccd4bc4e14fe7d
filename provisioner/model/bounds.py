"""Limits on user input, and on data that grows with it.

An object above a limit is usually not served, and an Event reports it (docs/security.md).
"""

# --- single texts, in characters ---
#: Longest label value. Checked, because Kubernetes does not check node selectors in custom resources.
LABEL_VALUE = 63
#: Longest label key in Kubernetes: a prefix of 253 characters, "/", and a name of 63.
LABEL_KEY = 317
OBJECT_NAME = 253
#: Characters of one annotation that the provisioner reads. The longest are lists of capacity choices.
ANNOTATION = 4096
#: Characters that are kept of the scheduler's messages and of conditions of capacity requests. Events allow 1,024.
SCHEDULER_MESSAGE = 1024
#: Characters of the message of a condition. The API accepts 32,768.
CONDITION_MESSAGE = 2048
QUOTED = 80

# --- entries of one pod or pod template ---
#: Number of labels, and number of nodeSelector entries.
MAP_ENTRIES = 128
#: Number of tolerations. A pod has about five, and each toleration is compared with every taint of the nodes.
TOLERATIONS = 64
#: Number of volumes. A machine attaches at most 128 disks.
VOLUMES = 256
#: Number of expressions in all terms of required node affinity.
EXPRESSIONS = 64
#: Number of values in all expressions of required node affinity; enough for a list of 1,000 excluded hosts.
EXPRESSION_VALUES = 1024
#: Characters of labels, selectors, annotations, tolerations and affinity together. A large pod has about 4,000.
REQUIREMENTS = 65_536

# --- entries of one workload ---
#: Number of replicated jobs of a JobSet, worker groups of a RayCluster, or subgroups of a group of a LeaderWorkerSet.
REPLICATED_JOBS = 256
#: Number of groups with chips. A GKE cluster has at most a few thousand node pools for groups. In one namespace, also
#: the number of requested slices, and of group names that a starting process compares with the labels of nodes.
CHILD_JOBS = 4096
#: Number of slices of one CapacityBuffer or ProvisioningRequest. A request's status names pools in 32,768 characters.
REQUESTED_SLICES = 768
#: Number of pods of one group with chips. The largest slice has 2,304 hosts.
PARALLELISM = 65_536
#: Characters of all kept fields of a workload, including its templates.
JOBSET = 262_144

# --- objects and decisions of one namespace; further objects of a kind are kept with few fields ---
#: Bytes of memory for the workloads of one kind, or PodTemplates. A usual JobSet takes about 3,000, at most 500,000.
NAMESPACE_WORKLOADS = 16_777_216
#: Bytes of memory for pods. A pod takes about 3,000, so 22,000 fit; most GKE clusters may have at most 15,000 nodes.
NAMESPACE_PODS = 67_108_864
#: Bytes of memory for PersistentVolumeClaims. A claim takes about 300.
NAMESPACE_CLAIMS = 4_194_304
#: Number of ProvisioningRequests, and number of CapacityBuffers. Each decision processes all of them.
NAMESPACE_REQUESTS = 4096
#: Number of objects with few fields, of about 2,700 bytes each. Further objects are not kept at all.
REDUCED = 2048
#: Number of remembered refusals by the scheduler; the first to end are dropped. Each takes 500 bytes, for up to 2 days.
NAMESPACE_REFUSALS = 4096
#: Number of pairs of a waiting slice and a choice of capacity. A decision takes up to 25 µs and 1,000 bytes per pair.
NAMESPACE_CHOICES = 65_536
#: Number of pairs of a choice of capacity and a slice whose pods select labels of their own pool; each takes 0.2 ms.
NAMESPACE_OWN_POOLS = 4096

# --- a node pool that is shared by slices of one pod each ---
#: Number of nodes. A pool is deleted only as a whole, and a larger pool would rarely be free of pods.
SHARED_POOL_NODES = 16

# --- a TPUNodeGroup and its children ---
#: Number of machines. The largest slice has 2,304 hosts.
GROUP_NODES = 2304
#: Characters of all finalizers of an object. The finalizers of the provisioner have fewer than 200.
FINALIZERS = 4096
#: Bytes of one value of metadata, and of all values of a TPUNodeGroup. Compute Engine accepts 262,144 bytes per value.
METADATA_VALUE = 262_144
#: Number of network tags. Compute Engine accepts 64.
NETWORK_TAGS = 64
#: Characters of a kubelet's certificate request in base64. The longest usual one has 2,800; 1 MB takes 0.5 s to parse.
CERTIFICATE_REQUEST = 4096
#: Number of certificate requests of one bootstrap token in its 30 minutes. `kubeadm join` waits 5 minutes for each.
CERTIFICATE_REQUESTS = 16
#: Number of conditions, beyond the number of own types, that are read from a CapacityBuffer or ProvisioningRequest.
CONDITIONS = 16
#: Number of recorded times at which the slice of a TPUNodeGroup was recreated, and maximum of REPAIRS_PER_DAY.
RECREATIONS = 100

# --- the TPU environment of one pod ---
#: Number of workers of a slice. Each worker gets the host names of all workers. The largest slice has 9,216 chips.
SLICE_WORKERS = 9216
#: Number of containers of a pod that request chips. A VM has at most eight chips.
TPU_CONTAINERS = 64
#: Number of containers of a pod that requests IPUs, including init containers. Known pods have at most a few dozen.
IPU_CONTAINERS = 256
#: Characters of name and value of a variable: the limit of Linux, MAX_ARG_STRLEN, without "=" and the final byte.
VARIABLE = 131_072 - 2
#: Characters of all TPU variables of a pod, because the API server stores objects of at most 1.5 MiB.
VARIABLES = 393_216

# --- the hints, a ConfigMap of at most 1 MiB, keys and values together ---
HINTS = 786_432
#: Number of back-offs that are saved for the next process.
HINTED_BACKOFFS = 500
#: Characters of the message of a failed call in a saved back-off, and of a failed call or write in partition Events.
HINTED_WORDS = 512

# --- the metrics ---
#: Number of namespaces whose use of chips is counted separately. All others are counted together.
METERED_NAMESPACES = 100
#: Number of separate counts by namespace, accelerator, capacity type and use. Further namespaces are counted together.
METERED_ACCOUNTS = 1_000

# --- entries of one node or namespace, which administrators and kubelets write; further entries are ignored ---
CLUSTER_OBJECT_LABELS = 256
NODE_TAINTS = 64

# --- entries of one annotation or setting ---
#: Number of capacity choices. There are four kinds of capacity, and users have at most a few dozen reservations.
CHOICES = 32
ZONES = 16
#: Number of pairs of a choice and a zone. A decision checks pairs in order until one allows a pool.
CHOICES_IN_ZONES = 64
NETWORKS = 16
NODE_ENTRIES = 64
COPIED_LABELS = 64


def cut(text: str, limit: int = QUOTED) -> str:
    """Return a text of at most `limit` characters; a longer text is cut, with an ellipsis as the last character."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def quoted(text: str) -> str:
    """Return a text in quotes for a message, cut to QUOTED characters."""
    return repr(cut(text))


def too_many(noun: str, count: int, limit: int, title: str = "") -> tuple[str, str]:
    """Return the problem that a count exceeds its limit, and the next step."""
    return f"{title} has {count:,} {noun}, and at most {limit:,} are read".lstrip(), "use fewer"


def too_long(title: str, text: str, limit: int) -> tuple[str, str]:
    """Return the problem that a text exceeds its limit, and the next step."""
    return f"{title} {quoted(text)} has {len(text):,} characters, and at most {limit:,} are read", "shorten it"
