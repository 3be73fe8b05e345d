{{- define "nadi.selector" -}}
app.kubernetes.io/name: nadi
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nadi.labels" -}}
{{ include "nadi.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* The name of a secret: the given one, or the release's. */ -}}
{{- define "nadi.secret" -}}
{{- $root := index . 0 -}}
{{- index . 2 | default (printf "%s-%s" $root.Release.Name (index . 1)) -}}
{{- end -}}

{{- define "nadi.ports" -}}
controller: 9090
rest: 9091
store: 12345
{{- if .Values.kafka.enabled }}
kafka: {{ .Values.kafka.port }}
{{- end }}
{{- end -}}

{{- define "nadi.probe" -}}
httpGet:
  path: /v1/health/{{ index . 1 }}
  port: rest
  scheme: HTTPS
  httpHeaders:
    - name: Authorization
      value: Basic {{ printf "%s:%s" (index . 0).Values.probe.user (index . 0).Values.probe.password | b64enc }}
timeoutSeconds: 5
{{- end -}}

{{- /* The pods' own address, which its certificate contains. */ -}}
{{- define "nadi.host" -}}
$(POD_NAME).{{ .Release.Name }}-servers.$(POD_NAMESPACE).svc.{{ .Values.clusterDomain }}
{{- end -}}
