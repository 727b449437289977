{{- define "refrain.labels" -}}
app.kubernetes.io/name: refrain
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "refrain.check" -}}
{{- if and (eq .Values.store.kind "embedded") (gt (int .Values.replicas) 1) }}
{{- fail "store.kind=embedded is for one replica, because a file: store belongs to one process; set replicas=1, or store.kind=shared with the address of PostgreSQL or Redis in the secret" }}
{{- end }}
{{- end }}
