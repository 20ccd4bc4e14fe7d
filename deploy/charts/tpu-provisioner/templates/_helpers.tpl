{{- define "tpu-provisioner.labels" -}}
app.kubernetes.io/name: tpu-provisioner
app.kubernetes.io/part-of: tpu-provisioner
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Never changed: a Deployment's selector cannot be. */ -}}
{{- define "tpu-provisioner.selector" -}}
app.kubernetes.io/name: tpu-provisioner
app.kubernetes.io/component: controller
{{- end }}

{{- define "tpu-provisioner.image" -}}
{{- with .Values.image -}}
{{- $_ := required "image.repository is required: set it to the controller's image without the tag; a released chart names its own" .repository -}}
{{- if and .tag .digest -}}
{{- fail (printf "image.tag %v has no effect, because image.digest is set, as in a released chart: remove image.tag, or set image.digest to an empty value" .tag) -}}
{{- end -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}

{{- /* Environment variables of a map of settings, and extraEnv. A name that both have is rejected: Helm merges variables
by name, so an upgrade that removes it from extraEnv would remove both, and with MAX_CHIPS the limit. */ -}}
{{- define "tpu-provisioner.variables" -}}
{{- $names := concat (keys (index . 1)) (list "POD_NAME" "POD_NAMESPACE") -}}
{{- $extra := (index . 0).Values.extraEnv -}}
{{- range $extra -}}
{{- if has .name $names -}}
{{- fail (printf "extraEnv sets %s, which the chart or a setting sets as well: set it in only one place" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $name, $value := index . 1 }}
- name: {{ $name }}
  {{- /* Numbers come from YAML as floats. */}}
  value: {{ if kindIs "float64" $value }}{{ $value | int64 | toString | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
{{- with $extra }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Not empty if the provisioner of node pools is installed. */ -}}
{{- define "tpu-provisioner.with-slices" -}}
{{- if not (or .Values.webhook.only .Values.nodegroups.only) }}true{{ end -}}
{{- end }}

{{- /* Not empty if the controller of TPUNodeGroups is installed. */ -}}
{{- define "tpu-provisioner.with-nodegroups" -}}
{{- if or .Values.nodegroups.enabled .Values.nodegroups.only }}true{{ end -}}
{{- end }}

{{- /* Not empty where the webhook server is installed. With webhook.only, the values of gke-tpu-env-injector's chart are
taken under their old names; those without a counterpart are refused. */ -}}
{{- define "tpu-provisioner.with-webhook" -}}
{{- $given := .Values -}}
{{- $webhook := .Values.webhook -}}
{{- $renamed := dict "replicaCount" "replicas" "additionalArguments" "extraArgs" "cert-manager" "certManager" -}}
{{- range $old, $new := $renamed -}}
{{- if hasKey $given $old -}}
{{- if not $webhook.only -}}
{{- fail (printf "%s is a value of gke-tpu-env-injector's chart: use webhook.%s, or set webhook.only" $old $new) -}}
{{- end -}}
{{- $_ := set $webhook $new (index $given $old) -}}
{{- end -}}
{{- end -}}
{{- $service := merge (dict) (.Values.service | default dict) (dict "type" "ClusterIP" "port" 443) -}}
{{- $unsupported := dict
  "autoscaling.enabled" (list (dig "enabled" false (.Values.autoscaling | default dict)) "set webhook.replicas")
  "fullnameOverride" (list .Values.fullnameOverride "the objects' names are fixed")
  "nameOverride" (list .Values.nameOverride "the objects' names are fixed")
  "serviceAccount.name" (list .Values.serviceAccount.name "its name is tpu-provisioner-webhook")
  "service" (list (ne (printf "%v:%v" $service.type $service.port) "ClusterIP:443") "its type is ClusterIP and its port 443")
  "podSecurityContext" (list .Values.podSecurityContext "the pods meet the Pod Security Standard restricted")
  "securityContext" (list .Values.securityContext "the pods meet the Pod Security Standard restricted")
  "volumes" (list .Values.volumes "the server makes its certificates; or set webhook.certManager.enabled")
  "additionalVolumeMounts" (list .Values.additionalVolumeMounts "see volumes") -}}
{{- range $old, $found := $unsupported -}}
{{- if first $found -}}
{{- fail (printf "%s, a value of gke-tpu-env-injector's chart, is not supported; remove it: %s" $old (last $found)) -}}
{{- end -}}
{{- end -}}
{{- if $webhook.only -}}
{{- if hasSuffix "/gke-tpu-env-injector" (.Values.image.repository | default "") -}}
{{- fail "image.repository is gke-tpu-env-injector's; remove it, or name this program's image" -}}
{{- end -}}
{{- $defaults := dict "requests" (dict "cpu" "100m" "memory" "256Mi") "limits" (dict "memory" "1Gi") -}}
{{- if ne (toJson .Values.resources) (toJson $defaults) -}}
{{- fail "resources are the provisioner's, and webhook.only installs none: set webhook.resources" -}}
{{- end -}}
{{- range tuple "nodeSelector" "tolerations" "affinity" -}}
{{- $_ := set $webhook . (index $webhook . | default (index $given .)) -}}
{{- end -}}
{{- end -}}
{{- if not (include "tpu-provisioner.with-slices" .) -}}
{{- /* Its warnings are about node pools of the provisioner. */ -}}
{{- $_ := merge $webhook.settings (dict "VALIDATION" "off") -}}
{{- end -}}
{{- if or $webhook.enabled $webhook.only }}true
{{- else -}}
{{- range tuple "certManager" "partitions" -}}
{{- if dig . "enabled" false $webhook -}}
{{- fail (printf "webhook.%s.enabled has no effect without the webhook server: set webhook.enabled as well, or remove it" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Not empty if a policy marks pods. */ -}}
{{- define "tpu-provisioner.with-placement-policy" -}}
{{- if and .Values.placement.enabled (include "tpu-provisioner.with-slices" .)
  (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") }}true{{ end -}}
{{- end }}

{{- /* Not empty if the webhook server marks pods, because the cluster cannot have the policy. */ -}}
{{- define "tpu-provisioner.with-placement-webhook" -}}
{{- if and .Values.placement.enabled .Values.webhook.enabled (include "tpu-provisioner.with-slices" .)
  (not (include "tpu-provisioner.with-placement-policy" .)) }}true{{ end -}}
{{- end }}

{{- /* The condition under which pods of a namespace are marked. */ -}}
{{- define "tpu-provisioner.assigned" -}}
namespaceObject.metadata.?labels[?"tpu-provisioner/placement"].orValue("") {{ eq .Values.placement.namespaces "all" | ternary "!= \"off\"" "== \"assign\"" }}
{{- end }}
