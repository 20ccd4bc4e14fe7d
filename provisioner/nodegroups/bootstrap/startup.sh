#!/bin/bash
# Makes this machine a node of a Kubernetes cluster. Compute Engine runs this script as root at every boot.
#
# The API server's address and the join token are in the machine's metadata. Both may be written long after the boot,
# and may change until the machine has joined, so each attempt reads them again. Failed steps are retried without limit.
# Steps can be repeated. On a machine that has joined, the script only prepares the kernel and starts the kubelet.
set -u

REPOSITORY=@REPOSITORY@
# Prefix of paths of files: empty on a machine, a folder in tests.
ROOT=${ROOT:-}
METADATA=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1
WORK=$ROOT/run/tpu-provisioner
KEYRING=$ROOT/etc/apt/keyrings/kubernetes-apt-keyring.asc
SOURCES=$ROOT/etc/apt/sources.list.d/kubernetes.list
# kubeadm needs this address, because an image may contain several container runtimes.
RUNTIME=unix:///run/containerd/containerd.sock
FIRST_WAIT_SECONDS=2
LONGEST_WAIT_SECONDS=60
# Time-out for a kubeadm that hangs. kubeadm's own time-outs are a few minutes.
JOIN_SECONDS=900
export DEBIAN_FRONTEND=noninteractive
# With this locale, ranges of letters in patterns match the same characters on every image.
export LC_ALL=C

# Logs to stderr, because callers of functions read their stdout.
log() {
  echo "tpu-provisioner: $*" >&2
}

# Repeats a step until it succeeds, with pauses that double from 2 to 60 s.
persist() {
  local wait=$FIRST_WAIT_SECONDS
  until "$@"; do
    log "$* did not succeed; again in $wait s"
    sleep "$wait"
    wait=$((wait * 2))
    [ "$wait" -le "$LONGEST_WAIT_SECONDS" ] || wait=$LONGEST_WAIT_SECONDS
  done
}

metadata() {
  curl --silent --fail --noproxy '*' --max-time 10 --header 'Metadata-Flavor: Google' "$METADATA/$1"
}

# Prints the metadata value of a key. Fails if the value cannot be read, or does not match the pattern.
attribute() {
  local value
  value=$(metadata "instance/attributes/$1") || {
    log "there is no $1 in the metadata yet"
    return 1
  }
  [[ $value =~ ^($2)$ ]] || {
    log "$1 in the metadata cannot be read"
    return 1
  }
  printf '%s' "$value"
}

# Prints the value of an optional key. Fails if a read fails: a node that lacks a taint would get pods too early.
optional_attribute() {
  local keys
  keys=$(metadata instance/attributes/) || return 1
  grep -qx "$1" <<< "$keys" || return 0
  metadata "instance/attributes/$1"
}

# Replaces a file by the output of a command. If the command fails or prints nothing, keeps the file and fails.
write() {
  local path=$1
  shift
  mkdir -p "${path%/*}" && "$@" > "$path.new" && [ -s "$path.new" ] && mv -f "$path.new" "$path"
}

has_joined() {
  [ -s "$ROOT/etc/kubernetes/kubelet.conf" ]
}

prepare_kernel() {
  swapoff -a || return 1
  write "$ROOT/etc/modules-load.d/tpu-provisioner.conf" printf '%s\n' overlay br_netfilter || return 1
  modprobe overlay && modprobe br_netfilter || return 1
  write "$ROOT/etc/sysctl.d/90-tpu-provisioner.conf" printf '%s = 1\n' \
    net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables net.ipv4.ip_forward || return 1
  sysctl -q -p "$ROOT/etc/sysctl.d/90-tpu-provisioner.conf"
}

# Waits up to 120 s for the lock of another apt process, and then fails. The calling step is retried.
apt_get() {
  apt-get --quiet --option DPkg::Lock::Timeout=120 --option Dpkg::Options::=--force-confold "$@"
}

install_runtime() {
  if ! { command -v containerd && command -v conntrack && command -v curl; } > /dev/null; then
    dpkg --force-confold --configure -a
    apt_get update && apt_get install --yes --no-install-recommends ca-certificates conntrack containerd curl ||
      return 1
  fi
}

# Prints containerd's default configuration with SystemdCgroup, a key that 2.1.0 to 2.1.4 lack (containerd#12101).
systemd_cgroups() {
  local config
  config=$(containerd config default |
    sed -e '/^[[:space:]]*SystemdCgroup =/d' -e '/containerd\.runtimes\.runc\.options]$/a\  SystemdCgroup = true')
  grep -q '^[[:space:]]*SystemdCgroup = true' <<< "$config" || {
    log "the default configuration of containerd has no options of runc; install another version of containerd"
    return 1
  }
  echo "$config"
}

configure_runtime() {
  local config=$ROOT/etc/containerd/config.toml
  if ! grep -qs '^[[:space:]]*SystemdCgroup = true' "$config"; then
    write "$config" systemd_cgroups && systemctl restart containerd || return 1
  fi
  systemctl enable --now containerd
}

has_kubernetes() {
  command -v kubelet > /dev/null && [[ $(kubeadm version --output short 2> /dev/null) == "v$1."* ]]
}

# Installs the packages of one minor version, unless the image contains them.
install_kubernetes() {
  local version
  version=$(attribute kubeadm-kubernetes-version '1\.[0-9]{1,3}') || return 1
  has_kubernetes "$version" && return 0
  local packages=$REPOSITORY/core:/stable:/v$version/deb
  write "$KEYRING" curl --silent --show-error --fail --location --max-time 60 "$packages/Release.key" || return 1
  write "$SOURCES" echo "deb [signed-by=${KEYRING#"$ROOT"}] $packages/ /" || return 1
  dpkg --force-confold --configure -a
  apt_get update || return 1
  apt_get install --yes --allow-change-held-packages --allow-downgrades kubelet kubeadm kubectl || return 1
  apt-mark hold kubelet kubeadm kubectl
  hash -r
  has_kubernetes "$version" || {
    log "kubeadm is not of version $version although its package is installed; remove the other one from the image"
    return 1
  }
}

# Prints the labels that a kubelet may set. It does not start with an invalid label, or a label reserved by Kubernetes.
allowed_labels() {
  local IFS=, label kept=()
  local name='[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?'
  local form="^[[:space:]]*(([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?$name=($name)?)[[:space:]]*$"
  set -f
  for label in $1; do
    [[ $label =~ $form ]] || {
      log "$label is no label"
      continue
    }
    label=${BASH_REMATCH[1]}
    case ${label%%=*} in
      kubelet.kubernetes.io/* | *.kubelet.kubernetes.io/* | node.kubernetes.io/* | *.node.kubernetes.io/*) ;;
      kubernetes.io/hostname | kubernetes.io/os | kubernetes.io/arch | topology.kubernetes.io/zone) ;;
      topology.kubernetes.io/region) ;;
      kubernetes.io/* | *.kubernetes.io/* | k8s.io/* | *.k8s.io/*)
        log "the label $label is not for a kubelet to set"
        continue
        ;;
    esac
    kept+=("$label")
  done
  echo "${kept[*]}"
}

# Prints the valid taints. The kubelet does not start with an invalid taint, or two taints of the same key and effect.
allowed_taints() {
  local IFS=, taint key kept=()
  local -A seen=()
  local name='[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?'
  local effect='(NoSchedule|PreferNoSchedule|NoExecute)'
  local form="^[[:space:]]*(([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?$name(=($name)?)?:$effect)[[:space:]]*$"
  set -f
  for taint in $1; do
    [[ $taint =~ $form ]] || {
      log "$taint is no taint"
      continue
    }
    taint=${BASH_REMATCH[1]}
    key=${taint%%[=:]*}:${taint##*:}
    [ -z "${seen[$key]:-}" ] || {
      log "there is a taint $key already"
      continue
    }
    seen[$key]=$taint
    kept+=("$taint")
  done
  echo "${kept[*]}"
}

# Prints the JoinConfiguration in the API version that kubeadm of this minor version supports.
join_configuration() {
  local minor=$1 endpoint=$2 token=$3 hashes=$4 name=$5 provider_id=$6 labels=$7 taints=$8
  local form=v1beta4 hash argument
  [ "$minor" -ge 31 ] || form=v1beta3
  cat << CONFIGURATION
apiVersion: kubeadm.k8s.io/$form
kind: JoinConfiguration
discovery:
  bootstrapToken:
    token: "$token"
    apiServerEndpoint: "$endpoint"
    caCertHashes:
CONFIGURATION
  for hash in ${hashes//,/ }; do
    echo "    - \"$hash\""
  done
  # After this time-out (kubeadm's default is 5 minutes), the next attempt reads the token again.
  if [ "$form" = v1beta4 ]; then
    printf 'timeouts:\n  discovery: 2m0s\n'
  else
    echo '  timeout: 2m0s'
  fi
  cat << CONFIGURATION
nodeRegistration:
  name: "$name"
  criSocket: $RUNTIME
  kubeletExtraArgs:
CONFIGURATION
  for argument in ${labels:+"node-labels=$labels"} "provider-id=$provider_id" \
    "register-with-taints=$taints"; do
    if [ "$form" = v1beta4 ]; then
      echo "  - name: ${argument%%=*}"
      echo "    value: \"${argument#*=}\""
    else
      echo "    ${argument%%=*}: \"${argument#*=}\""
    fi
  done
}

join() {
  local project zone name version address port token hashes labels taints
  has_joined && return 0
  project=$(metadata project/project-id) || return 1
  zone=$(metadata instance/zone) || return 1
  name=$(metadata instance/name) || return 1
  version=$(attribute kubeadm-kubernetes-version '1\.[0-9]{1,3}') || return 1
  address=$(attribute kubeadm-control-plane-ip '[A-Za-z0-9.-]+') || return 1
  port=$(optional_attribute kubeadm-control-plane-port) || return 1
  port=${port:-6443}
  [[ $port =~ ^[0-9]{1,5}$ ]] || return 1
  hashes=$(attribute kubeadm-ca-hash 'sha256:[0-9a-f]{64}(,sha256:[0-9a-f]{64})*') || return 1
  token=$(attribute kubeadm-join-token '[a-z0-9]{6}\.[a-z0-9]{16}') || return 1
  # Labels are written together with the token, so labels that are read later match it. Labels and taints may be missing.
  labels=$(optional_attribute kube-labels) || return 1
  labels=$(allowed_labels "$labels")
  taints=$(optional_attribute kube-taints) || return 1
  taints=$(allowed_taints "google.com/tpu=present:NoSchedule,$taints")
  # The folder is in memory, and only root can read it, because the file contains the token.
  write "$WORK/join.yaml" join_configuration "${version#1.}" "$address:$port" "$token" "$hashes" "$name" \
    "gce://$project/${zone##*/}/$name" "$labels" "$taints" || return 1
  if timeout "$JOIN_SECONDS" kubeadm join --config "$WORK/join.yaml"; then
    rm -f "$WORK/join.yaml"
    return 0
  fi
  rm -f "$WORK/join.yaml"
  # The machine may have joined before the time-out stopped kubeadm.
  has_joined && return 0
  kubeadm reset --force --cri-socket "$RUNTIME"
  return 1
}

mkdir -p "$WORK" && chmod 700 "$WORK"
exec 9> "$WORK/lock"
# Another process already runs this script, for example if a user also starts it by hand.
flock --nonblock 9 || exit 0

persist prepare_kernel
if ! has_joined; then
  persist install_runtime
  persist configure_runtime
  persist install_kubernetes
  persist join
fi
persist systemctl enable --now kubelet
log "this machine has joined the cluster"
