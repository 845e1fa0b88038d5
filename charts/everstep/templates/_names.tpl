{{- define "everstep.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of everything in the chart; call with (list $ "component"). */}}
{{- define "everstep.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/part-of: everstep
app.kubernetes.io/name: everstep
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{- define "everstep.selector" -}}
app.kubernetes.io/name: everstep
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* The part of a pod's spec that all Everstep pods share. */}}
{{- define "everstep.pod" -}}
priorityClassName: everstep-critical
enableServiceLinks: false
# A lost packet of the DNS costs a second, not the 5 s of resolv.conf(5).
dnsConfig:
  options: [{name: timeout, value: "1"}, {name: attempts, value: "5"}]
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* A container that needs no rights at all. */}}
{{- define "everstep.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Quick to become ready, cheap once it is; call with the port. */}}
{{- define "everstep.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 1
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 2
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}
