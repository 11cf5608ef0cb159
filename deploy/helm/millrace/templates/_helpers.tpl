{{/* The labels of a component: include "millrace.labels" "compute". */}}
{{- define "millrace.labels" -}}
{app.kubernetes.io/name: millrace, app.kubernetes.io/component: {{ . }}}
{{- end }}

{{- define "millrace.natsLabels" -}}
{app.kubernetes.io/name: nats, app.kubernetes.io/part-of: millrace}
{{- end }}

{{/* What all pods have in common. */}}
{{- define "millrace.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "millrace.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The source of the volume of models as JSON, "" if there is none. */}}
{{- define "millrace.models" -}}
{{- if .Values.model.volume }}{{ toJson .Values.model.volume }}
{{- else if .Values.model.pull }}{"persistentVolumeClaim": {"claimName": "models"}}
{{- end }}
{{- end }}
