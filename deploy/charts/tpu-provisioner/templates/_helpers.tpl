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
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}

{{- /* Environment variables of a map of settings. */ -}}
{{- define "tpu-provisioner.settings" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  {{- /* Numbers come from YAML as floats. */}}
  value: {{ if kindIs "float64" $value }}{{ $value | int64 | toString | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
{{- end }}
