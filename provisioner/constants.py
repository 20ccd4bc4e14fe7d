"""Labels, annotations and resources that the provisioner reads or writes, grouped by their owner."""

# --- Kubernetes -------------------------------------------------------------------------------------------------
#: Index of a pod in its Job: an annotation, since Kubernetes 1.28 also a label.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
#: Label of pods of StatefulSets, since Kubernetes 1.28: number at the end of the pod's name.
POD_INDEX = "apps.kubernetes.io/pod-index"
STATEFUL_SET_POD_NAME = "statefulset.kubernetes.io/pod-name"
LEADER_INDEX = 0
#: Label of pods: UID of their Job.
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
#: spec.managedBy of Jobs that Kubernetes' own controller runs.
JOB_CONTROLLER = "kubernetes.io/job-controller"

# --- JobSet -----------------------------------------------------------------------------------------------------
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
#: UID of a pod's JobSet, as a label; absent before JobSet 0.8.
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
REPLICATED_JOB_NAME = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
#: Number of a child Job among all child Jobs of its JobSet.
JOB_GLOBAL_INDEX = "jobset.sigs.k8s.io/job-global-index"
#: Label: SHA1 of "<namespace>/<job name>". A recreated Job of the same name has the same value.
JOB_KEY = "jobset.sigs.k8s.io/job-key"
#: Annotation of JobSets, their Jobs and pods: key of a node label. Nodes with the same label value serve only one Job.
EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
#: Annotation of JobSets and replicated jobs: with any value, pods with EXCLUSIVE_TOPOLOGY select NAMESPACED_JOB.
NODE_SELECTOR_STRATEGY = "alpha.jobset.sigs.k8s.io/node-selector"
#: Label of nodes, "NAMESPACE_JOB". JobSet adds it to the nodeSelector of pods, but not to nodes.
NAMESPACED_JOB = "alpha.jobset.sigs.k8s.io/namespaced-job"
#: Key of the taint of nodes with NAMESPACED_JOB. JobSet adds a toleration to the pods of that Job.
JOB_TAINT = "alpha.jobset.sigs.k8s.io/no-schedule"
JOB_NAME = "batch.kubernetes.io/job-name"
RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
#: spec.managedBy of JobSets that the JobSet controller in this cluster manages.
JOBSET_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"

# --- LeaderWorkerSet --------------------------------------------------------------------------------------------
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
#: Annotation of pods: number of pods in a group.
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
#: Labels of pods: number of the group, key of the group, and index in the group (0 for the leader).
LWS_GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
LWS_GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"
LWS_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
#: Labels of pods: number of their subgroup in the group, and key of the subgroup, a hash of leader name and number.
LWS_SUBGROUP_INDEX = "leaderworkerset.sigs.k8s.io/subgroup-index"
LWS_SUBGROUP_KEY = "leaderworkerset.sigs.k8s.io/subgroup-key"
#: Annotations of pods: number of pods in a subgroup, and "true" on workers if the leader also requests chips.
LWS_SUBGROUP_SIZE = "leaderworkerset.sigs.k8s.io/subgroup-size"
LWS_LEADER_REQUESTS_TPUS = "leaderworkerset.sigs.k8s.io/leader-requests-tpus"
#: Annotation of leader pods: LeaderWorker, or LeaderExcluded if the leader is in no subgroup.
LWS_SUBGROUP_POLICY_TYPE = "leaderworkerset.sigs.k8s.io/subgroup-policy-type"
#: Annotations of LeaderWorkerSets: key of a node label. Nodes with the same value serve one group, or one subgroup.
LWS_EXCLUSIVE_TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
#: Label of LeaderWorkerSets and pods: name of their DisaggregatedSet.
DISAGGREGATED_SET = "disaggregatedset.x-k8s.io/name"

#: Labels of nodes on Compute Engine: name and namespace of their TPUNodeGroup. NodeRestriction protects the second.
NODE_GROUP_NAME = "cloud.google.com/tpu-node-group-name"
TRUSTED_GROUP_NAMESPACE = "node-restriction.kubernetes.io/tpu-node-group-namespace"

# --- KubeRay -----------------------------------------------------------------------------------------------------
#: Labels of a RayCluster's pods. Only replicas with several hosts have RAY_REPLICA_NAME and RAY_HOST_INDEX.
RAY_CLUSTER_NAME = "ray.io/cluster"
RAY_GROUP = "ray.io/group"
RAY_REPLICA_INDEX = "ray.io/worker-group-replica-index"
RAY_REPLICA_NAME = "ray.io/worker-group-replica-name"
RAY_HOST_INDEX = "ray.io/replica-host-index"
#: spec.managedBy of RayClusters that KubeRay in this cluster manages.
RAY_CONTROLLER = "ray.io/kuberay-operator"

# --- Cluster Autoscaler -------------------------------------------------------------------------------------------
#: Annotation of pods: name of the ProvisioningRequest, in the pod's namespace, whose capacity the pod uses.
CONSUMES_REQUEST = "autoscaling.x-k8s.io/consume-provisioning-request"
#: Conditions of ProvisioningRequests.
ACCEPTED = "Accepted"
PROVISIONED = "Provisioned"
FAILED = "Failed"
BOOKING_EXPIRED = "BookingExpired"
CAPACITY_REVOKED = "CapacityRevoked"
#: Conditions of CapacityBuffers.
READY_FOR_PROVISIONING = "ReadyForProvisioning"
PROVISIONING_BUFFER = "Provisioning"

# --- GKE: labels, annotations and taints of nodes, and labels in the nodeSelector of pods ---------------------------
NODE_POOL = "cloud.google.com/gke-nodepool"
#: Annotation of nodes: labels that GKE applied at the last registration or boot, as comma-separated KEY=VALUE
#: (kubernetes/cloud-provider-gcp, node_annotator.go). GKE's autoscaler treats a node without it as unready.
APPLIED_LABELS = "node.gke.io/last-applied-node-labels"
TPU_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
SPOT = "cloud.google.com/gke-spot"
#: Label of nodes with the value "spot", "standard", or another kind of provisioning.
PROVISIONING = "cloud.google.com/gke-provisioning"
ACCELERATOR_COUNT = "cloud.google.com/gke-accelerator-count"
RESERVATION_NAME = "cloud.google.com/reservation-name"
RESERVATION_PROJECT = "cloud.google.com/reservation-project"
RESERVATION_BLOCK = "cloud.google.com/reservation-blocks"
RESERVATION_SUB_BLOCK = "cloud.google.com/reservation-subblocks"
FLEX_START = "cloud.google.com/gke-flex-start"
#: Key of the taint of queued nodes, and of the label in the nodeSelector of their pods.
QUEUED = "cloud.google.com/gke-queued"
#: Label in a nodeSelector: maximum run duration in seconds.
MAX_RUN_SECONDS = "cloud.google.com/gke-max-run-duration-seconds"
PLACEMENT_POLICY = "cloud.google.com/placement-policy-name"
#: Labels of nodes: name of the collection of their node pool, and purpose of the collection, such as HIGH_AVAILABILITY.
COLLECTION = "cloud.google.com/gke-nodepool-group-name"
WORKLOAD_TYPE = "cloud.google.com/gke-workload-type"
#: Label in a nodeSelector: "auto" requests TPU networks of GKE. Nodes with such networks have NETWORKING_DRA_DRIVER.
NETWORK_PROFILE = "gke.networks.io/accelerator-network-profile"
NETWORKING_DRA_DRIVER = "cloud.google.com/gke-networking-dra-driver"
#: Label of nodes: "true" if chips are offered in ResourceSlices of TPU_DRIVER_NAME, not as the resource google.com/tpu.
TPU_DRA_DRIVER = "cloud.google.com/gke-tpu-dra-driver"
TPU_DRIVER_NAME = "tpu.google.com"
#: Label in a nodeSelector that is copied to the nodes: "false" disables the resiliency of the inter-chip links.
ICI_RESILIENCY = "cloud.google.com/gke-tpu-ici-resiliency"
#: Label of pods: GKE restarts the slice after a repair. COPY_LABELS may copy this label to nodes.
AUTO_RESTART = "cloud.google.com/gke-tpu-auto-restart"
#: Label in a nodeSelector that is copied to the nodes.
LOCATION_HINT = "cloud.google.com/gke-location-hint"
#: Labels of nodes: Unix time of the next host maintenance, and "ONGOING" during maintenance.
SCHEDULED_MAINTENANCE = "cloud.google.com/scheduled-maintenance-time"
ACTIVE_MAINTENANCE = "cloud.google.com/active-node-maintenance"
#: Key of the taint that nodes get shortly before a host maintenance.
IMPENDING_TERMINATION = "cloud.google.com/impending-node-termination"
#: Annotation of pods that use GKE's dynamic slicing, which another controller serves.
SLICE_TOPOLOGY = "cloud.google.com/gke-tpu-slice-topology"
#: Name of the resource that counts chips, and key of the taint of TPU nodes.
TPU_RESOURCE = "google.com/tpu"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
MACHINE_FAMILY = "cloud.google.com/machine-family"
OS_DISTRIBUTION = "cloud.google.com/gke-os-distribution"
BOOT_DISK = "cloud.google.com/gke-boot-disk"
CONTAINER_RUNTIME = "cloud.google.com/gke-container-runtime"
METADATA_SERVER = "iam.gke.io/gke-metadata-server-enabled"
RESERVATION_AFFINITY = "cloud.google.com/reservation-affinity"
#: Key of a label and a taint of nodes of GKE Sandbox. Pods get selector and toleration from the RuntimeClass gvisor.
SANDBOX_RUNTIME = "sandbox.gke.io/runtime"
COMPUTE_CLASS = "cloud.google.com/compute-class"
PRIVATE_NODE = "cloud.google.com/private-node"
LOCAL_SSD = "cloud.google.com/gke-ephemeral-storage-local-ssd"
LOCAL_NVME_SSD = "cloud.google.com/gke-local-nvme-ssd"
GVISOR = "gvisor"
GPU_ACCELERATOR = "cloud.google.com/gke-accelerator"
PREEMPTIBLE = "cloud.google.com/gke-preemptible"
HOSTNAME = "kubernetes.io/hostname"
#: Prefixes of taint keys that Kubernetes sets on unhealthy, cordoned or not yet initialized nodes.
NODE_CONDITION_TAINT_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
OS = "kubernetes.io/os"
ARCH = "kubernetes.io/arch"
#: Former names of ZONE, REGION, INSTANCE_TYPE, OS and ARCH, which nodes also have, and the storage driver's zone label.
GKE_ZONE = "topology.gke.io/zone"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION = "failure-domain.beta.kubernetes.io/region"
BETA_INSTANCE_TYPE = "beta.kubernetes.io/instance-type"
BETA_OS = "beta.kubernetes.io/os"
BETA_ARCH = "beta.kubernetes.io/arch"
ZONE_LABELS = (ZONE, GKE_ZONE, BETA_ZONE)
#: Label domains of Google and Kubernetes. Most of their labels are not copied from pods to nodes.
SYSTEM_LABEL_DOMAINS = ("google.com", "kubernetes.io", "k8s.io", "gke.io")

# --- The provisioner, in part shared with the Go provisioner ----------------------------------------------------------
#: Label or annotation of pods and workloads; "true" excludes the pods from provisioning.
DISABLE = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
#: Label of JobSets for which the Go provisioner creates Slice resources, and no node pools: "sync" or "async". Early
#: builds of the Go provisioner read an annotation with this key and the value "true".
SLICE_AUTOPROVISIONING = "tpu-provisioner.cloud.google.com/slice-autoprovisioning"
#: Annotation: comma-separated keys of pod labels that are copied to the nodes.
COPY_LABELS = "tpu-provisioner.cloud.google.com/copy-labels"
#: Annotation: additional networks of the nodes, such as "vpc1:subnet1, vpc2:subnet2".
ADDITIONAL_NODE_NETWORKS = "tpu-provisioner.cloud.google.com/additional-node-networks"
NODE_SERVICE_ACCOUNT = "tpu-provisioner.cloud.google.com/node-service-account"
#: Annotation: choices of capacity, the best first, such as "reservation/r1, on-demand, spot".
CAPACITY = "tpu-provisioner.cloud.google.com/capacity"
#: Annotation: zones, the best first, such as "us-east5-a, us-east5-b".
ZONES = "tpu-provisioner.cloud.google.com/zones"
#: Annotation: "true" requests all pools of the workload in one zone.
SAME_ZONE = "tpu-provisioner.cloud.google.com/same-zone"
#: Annotation: duration, such as "24h", after which Google removes flex-start nodes.
MAX_RUN_DURATION = "tpu-provisioner.cloud.google.com/max-run-duration"
#: Annotation: "true" requests that the slices of the workload start together.
ALL_OR_NOTHING = "tpu-provisioner.cloud.google.com/all-or-nothing"
#: Annotation of Kubernetes for pods: a ReplicaSet that scales in deletes ready pods with a low cost first.
POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
#: Annotation of pods or their workload; "true" requests a slice although most of its hosts would not be used.
ALLOW_UNUSED_HOSTS = "tpu-provisioner.cloud.google.com/allow-unused-hosts"
#: Annotation of pods or their workload; "true" requests a slice although the pods are estimated not to fit its nodes.
IGNORE_NODE_ESTIMATE = "tpu-provisioner.cloud.google.com/ignore-node-estimate"
#: Prefix of most annotations that choose node settings (`settings.node_fields`).
NODE_SETTING_PREFIX = "tpu-provisioner.cloud.google.com/node-"

NODEPOOL_MANAGER = "google.com/nodepool-manager"
MANAGER = "tpu-provisioner"
PARENT_KIND = "google.com/tpu-provisioner-parent-kind"
PARENT_NAME = "google.com/tpu-provisioner-parent-name"
PARENT_NAMESPACE = "google.com/tpu-provisioner-parent-namespace"
POOL_JOBSET_NAME = "google.com/tpu-provisioner-jobset-name"
POOL_JOBSET_NAMESPACE = "google.com/tpu-provisioner-jobset-namespace"
NODEPOOL_HASH = "google.com/tpu-provisioner-nodepool-hash"
#: Label of pools that the Go provisioner before 2024-04 created, and key in users' nodeSelectors: name of the JobSet.
LEGACY_POOL_ID = "provisioner-nodepool-id"

# --- Only this provisioner ------------------------------------------------------------------------------------------
#: spec.provisioningClassName of served ProvisioningRequests, and spec.provisioningStrategy of served CapacityBuffers.
PROVISIONING_CLASS = "slices.tpu-provisioner.cloud.google.com"
BUFFER_STRATEGY = "buffer.tpu-provisioner.cloud.google.com/slice"
#: Label or annotation of pods and StatefulSets, "enabled" or "disabled": whether pods get TPU environment variables.
INJECT = "tpu-provisioner.cloud.google.com/inject"
#: INJECT, and the key of gke-tpu-env-injector with the same meaning.
INJECT_KEYS = (INJECT, "gke-tpu-env-injector.aaronbatilo.dev/inject")
#: Label or annotation, "true" or "false": whether the slices of a workload are one multislice.
MULTISLICE = "tpu-provisioner.cloud.google.com/multislice"
#: Annotation of plain Jobs and, with SERVE_PODS=annotated, of pods: "true" requests that the Job or pod is served.
SERVE = "tpu-provisioner.cloud.google.com/serve"
POOL_JOBSET_UID = "google.com/tpu-provisioner-jobset-uid"
POOL_JOB_KEY = "google.com/tpu-provisioner-job-key"
POOL_ATTEMPT = "google.com/tpu-provisioner-attempt"
#: Labels of pools for workloads other than JobSets. Pools of JobSets have PARENT_* and POOL_JOB* instead.
POOL_WORKLOAD_KIND = "google.com/tpu-provisioner-workload-kind"
POOL_WORKLOAD_NAME = "google.com/tpu-provisioner-workload-name"
POOL_WORKLOAD_NAMESPACE = "google.com/tpu-provisioner-workload-namespace"
POOL_WORKLOAD_UID = "google.com/tpu-provisioner-workload-uid"
POOL_GROUP_NAME = "google.com/tpu-provisioner-group-name"
POOL_GROUP_KEY = "google.com/tpu-provisioner-group-key"
#: Label: digest of the node settings that the workload chose (`node_fields.own_settings`); absent if it chose none.
POOL_OWN_SETTINGS = "google.com/tpu-provisioner-own-settings"
#: Label: topology of a pool whose pods select a workload policy. No other field of such a pool contains the topology.
POOL_TOPOLOGY = "google.com/tpu-provisioner-topology"
#: Labels of nodes: key and namespace of the slice to which their pool is assigned. Admission adds them to the
#: nodeSelector of the slice's pods. They are not under google.com, whose labels GKE's auto-provisioning reserves.
SLICE = "tpu-provisioner/slice"
SLICE_NAMESPACE = "tpu-provisioner/slice-namespace"
#: Value of SLICE and SLICE_NAMESPACE while the pool is kept free: no pod that requests chips can be bound to the pool.
SLICE_FREE = "none"
#: Label of namespaces: whether admission adds SLICE and SLICE_NAMESPACE to the nodeSelector of new pods.
PLACEMENT = "tpu-provisioner/placement"
PLACEMENT_ASSIGN = "assign"
#: Value of PLACEMENT: admission does not add SLICE and SLICE_NAMESPACE to pods, even with PLACEMENT_NAMESPACES=all.
PLACEMENT_OFF = "off"
#: Annotation of nodes that the provisioner cordoned before a delete; only these nodes are uncordoned.
CORDONED = "tpu-provisioner.cloud.google.com/cordoned"
#: Taint key of flex-start nodes that wait for the workload's other slices. The autoscaler ignores startup-taint keys.
HELD_LATE = "startup-taint.cluster-autoscaler.kubernetes.io/tpu-provisioner-held"
HELD_KEYS = (HELD_LATE,)
#: Labels in which the provisioner records the owner and other facts of a pool. Pods and settings must not set them.
OWNER_LABELS = frozenset(
    {
        NODEPOOL_MANAGER,
        PARENT_KIND,
        PARENT_NAME,
        PARENT_NAMESPACE,
        POOL_JOBSET_NAME,
        POOL_JOBSET_NAMESPACE,
        NODEPOOL_HASH,
        POOL_JOBSET_UID,
        POOL_JOB_KEY,
        POOL_WORKLOAD_KIND,
        POOL_WORKLOAD_NAME,
        POOL_WORKLOAD_NAMESPACE,
        POOL_WORKLOAD_UID,
        POOL_GROUP_NAME,
        POOL_GROUP_KEY,
        POOL_ATTEMPT,
        POOL_TOPOLOGY,
        POOL_OWN_SETTINGS,
        SLICE,
        SLICE_NAMESPACE,
    }
)

# --- Names of objects -----------------------------------------------------------------------------------------------
LEASE_NAME = "tpu-provisioner"
#: The Go provisioner's leader-election Lease, in the same namespace.
ORIGINAL_LEASE_NAME = "ecaf1259.google.com"
HINTS_CONFIGMAP_NAME = "tpu-provisioner-hints"
#: While this ConfigMap exists, no node pools are created.
PAUSE_CONFIGMAP_NAME = "tpu-provisioner-pause"
DEFAULT_NAMESPACE = "tpu-provisioner-system"
