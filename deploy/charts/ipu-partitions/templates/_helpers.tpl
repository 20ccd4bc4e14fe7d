{{- define "ipu-partitions.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "ipu-partitions.fullname" -}}
{{- $given := .Values.fullnameOverride | default .Values.fullNameOverride -}}
{{- if $given -}}
{{- $given | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := include "ipu-partitions.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ipu-partitions.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ipu-partitions.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "ipu-partitions.selector" -}}
app.kubernetes.io/name: {{ include "ipu-partitions.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ipu-partitions.labels" -}}
{{ include "ipu-partitions.selector" . }}
app.kubernetes.io/part-of: tpu-provisioner
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ipu-partitions.image" -}}
{{- $_ := required "image.repository is required: set it to this program's image with the vipu command line in it, without the tag" .Values.image.repository -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "ipu-partitions.servers" -}}
{{- if .Values.vipuServers -}}
{{ .Values.vipuServers }}
{{- else -}}
{{- required "vipuServerAddr is required: set it to the host name or address of the V-IPU server" .Values.vipuServerAddr }}:{{ .Values.vipuServerPort | int64 }}
{{- end }}
{{- end }}

{{- /* The API server knows one spelling; the plugin's documents have another. */ -}}
{{- define "ipu-partitions.serviceType" -}}
{{- $types := dict "clusterip" "ClusterIP" "nodeport" "NodePort" "loadbalancer" "LoadBalancer" -}}
{{- required (printf "service type %q is none of ClusterIP, NodePort, LoadBalancer" .) (get $types (lower .)) }}
{{- end }}

{{- define "ipu-partitions.podSecurity" -}}
{{- $default := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $default (deepCopy (.Values.podSecurityPolicyContext | default dict))) }}
{{- end }}

{{- define "ipu-partitions.security" -}}
{{- $default := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $default (deepCopy (.Values.securityContext | default dict))) }}
{{- end }}

{{- /* Environment variables of a map, which has each name once. */ -}}
{{- define "ipu-partitions.variables" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  {{- /* Numbers come from YAML as floats. */}}
  value: {{ if kindIs "float64" $value }}{{ $value | int64 | toString | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
{{- end }}

{{- define "ipu-partitions.pod" -}}
serviceAccountName: {{ .account }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
# On SIGTERM calls in progress get 22 s and the last Events 2 s.
terminationGracePeriodSeconds: 30
priorityClassName: {{ .root.Values.priorityClassName | default (include "ipu-partitions.fullname" .root) }}
enableServiceLinks: false
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
# On two nodes if there are two that it can run on.
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "ipu-partitions.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
    matchLabelKeys: [pod-template-hash]
securityContext: {{- include "ipu-partitions.podSecurity" .root | nindent 2 }}
{{- end }}

{{- define "ipu-partitions.probes" -}}
startupProbe:
  httpGet:
    path: /healthz
    port: probes
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet:
    path: /healthz
    port: probes
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: probes
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}
