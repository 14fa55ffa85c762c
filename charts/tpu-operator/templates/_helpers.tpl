{{- define "tpu-operator.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "tpu-operator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tpu-operator.labels" -}}
{{ include "tpu-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels of what Prometheus or Grafana select by labels of their own. Takes the root and a part of the values. */}}
{{- define "tpu-operator.monitorLabels" -}}
{{ include "tpu-operator.labels" (first .) }}
{{- with (last .).labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tpu-operator.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tpu-operator.runtimeImage" -}}
{{ .Values.runtime.image.repository }}:{{ .Values.runtime.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/*
What the operator may do in each namespace it works in: exactly the requests that it makes, which
tests/e2e/test_permissions.py compares with the API server's audit log.
*/}}
{{- define "tpu-operator.rules" -}}
- apiGroups: [tpu-operator.dev]
  resources: [tpujobs]
  verbs: [list, watch, delete]
- apiGroups: [tpu-operator.dev]
  resources: [tpujobs/status]
  verbs: [patch]
- apiGroups: [tpu-operator.dev]
  resources: [tpuinferences]
  verbs: [list, watch]
- apiGroups: [tpu-operator.dev]
  resources: [tpuinferencescalers]
  verbs: [get, list, watch, create, delete]
- apiGroups: [tpu-operator.dev]
  resources: [tpuinferences/status, tpuinferencescalers/status]
  verbs: [patch]
# Asked for by OwnerReferencesPermissionEnforcement, as on OpenShift, of who makes what holds up a deletion.
- apiGroups: [tpu-operator.dev]
  resources: [tpujobs/finalizers, tpuinferences/finalizers]
  verbs: [update]
# What replicas of earlier revisions are made anew from.
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
# What brings requests to TPUInferences.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [list, watch, create, patch, delete]
# To give endpoint pickers the rights of their ClusterRole, and nobody any others.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [{{ include "tpu-operator.name" . }}-endpoint-picker]
  verbs: [bind]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create]
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete]
# Kueue's, for jobs with spec.scheduling.queueName.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* What has no namespace: nodes, which pending reasons and placement read; what an admission by Kueue names. */}}
{{- define "tpu-operator.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list, watch]
{{- end }}
