module tpu-operator.dev/hack/tools/prometheus-operator

go 1.26.8

require github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring v0.95.2
