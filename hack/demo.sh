#!/usr/bin/env bash
# Run examples/hello-jax.yaml and show what happens: on a dev cluster that is brought up first, or on the cluster of
# KUBECONFIG. Exits 0 only if the job succeeds.
#
# Environment, all optional: KUBECONFIG            use this cluster, which has to have the images or reach their registry
#                            IMAGE, RUNTIME_IMAGE  NAME:TAG of the operator and of the runtime
#                            EMULATE=cpu           the cluster of KUBECONFIG has no TPUs
#                            NAME                  name of the dev cluster (dev)
#                            TIMEOUT               seconds that the job may take (300)
set -euo pipefail
cd "$(dirname "$0")/.."

EXAMPLE=examples/hello-jax.yaml
JOB=hello-jax
NAMESPACE=tpu-operator
NAME=${NAME:-dev}
TIMEOUT=${TIMEOUT:-300}

step() { printf '\n\033[1m[%3ds] %s\033[0m\n' "$SECONDS" "$*"; }
say() { printf '[%3ds] %s\n' "$SECONDS" "$*"; }
quietly() { # show the output of a command only if it fails
  local output
  output=$("$@" 2>&1) || { printf '%s\n' "$output" >&2; return 1; }
}

is_ours() { # whether KUBECONFIG is that of the dev cluster, which people are told to export
  local ours=.devcluster/kubeconfig
  [ "$NAME" = dev ] || ours=.devcluster/$NAME/kubeconfig
  [ -z "${KUBECONFIG-}" ] || [ "$(realpath -m "$KUBECONFIG")" = "$(realpath -m "$ours")" ]
}

use_tools() { # kubectl and helm of PATH, else the ones of the dev cluster
  local missing=()
  for tool in kubectl helm; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  [ ${#missing[@]} -eq 0 ] || add_tools "${missing[@]}"
}

add_tools() { # NAME... of the dev cluster
  TOOLS=$(python3 -m hack.devcluster binaries "$@" | paste -sd:)
  PATH=$TOOLS:$PATH
}

load() { # TARGET, unless the dev cluster holds this very build
  local stamp=.devcluster/$NAME/loaded-$1
  cmp -s "dist/images/$1.inputs" "$stamp" && { say "$1: already on the nodes"; return; }
  quietly python3 -m hack.devcluster load --name "$NAME" "dist/images/$1.tar"
  mkdir -p "${stamp%/*}"
  cp "dist/images/$1.inputs" "$stamp"
  say "$1: loaded"
}

dev_cluster() {
  step "Starting a cluster of four TPU hosts (the first time builds Kubernetes: up to 20 minutes)"
  local exports
  exports=$(python3 -m hack.devcluster up --name "$NAME")
  eval "$exports" # KUBECONFIG
  add_tools kubectl helm
  step "Building the images"
  hack/images.sh
  step "Loading the images into the nodes"
  load operator
  load runtime
  # The tag stays the same: a new build has to change the pods for them to be replaced.
  VALUES+=(--values hack/demo-values.yaml --set-string "podAnnotations.inputs=$(cat dist/images/operator.inputs)")
}

image_values() { # KEY NAME:TAG
  VALUES+=(--set-string "$1.repository=${2%:*}" --set-string "$1.tag=${2##*:}")
}

follow() { # print each change until the job ends; its last phase is left in PHASE
  local line last='' template='{.status.phase}|{.status.ready} hosts ready|{.status.pending.message}{"\n"}'
  PHASE=''
  while IFS= read -r line; do
    [ "$line" = "$last" ] && continue
    last=$line
    IFS='|' read -r PHASE ready pending <<<"$line"
    [ -z "$PHASE" ] || say "$(printf '%-11s %s  %s' "$PHASE" "$ready" "$pending")"
    case $PHASE in Succeeded | Failed) break ;; esac
  done < <(timeout "$TIMEOUT" kubectl get tpujob "$JOB" --watch --output "jsonpath=$template")
  kill "$!" 2>/dev/null || true
}

explain() { # why it did not succeed
  step "What Kubernetes knows about it"
  kubectl describe tpujob "$JOB" || true
  kubectl get pods --output wide --selector "tpu-operator.dev/job=$JOB" || true
  kubectl --namespace "$NAMESPACE" get pods --output wide || true
  kubectl --namespace "$NAMESPACE" logs --selector app.kubernetes.io/name=tpu-operator --tail 40 --prefix || true
}

host_logs() {
  local pod
  for pod in $(kubectl get pods --selector "tpu-operator.dev/job=$JOB" --output name | sort); do
    printf '%s\n' "--- ${pod#pod/}"
    # Gloo has a line for every connection.
    kubectl logs "$pod" --container main | grep --invert-match 'connected peer ranks' || true
  done
}

VALUES=()
OWN=''
if is_ours; then
  OWN=yes
  dev_cluster
else
  use_tools
  VALUES+=(--set-string "emulate=${EMULATE-}")
fi
[ -z "${IMAGE-}" ] || image_values image "$IMAGE"
[ -z "${RUNTIME_IMAGE-}" ] || image_values runtime.image "$RUNTIME_IMAGE"

step "Installing the chart"
quietly helm upgrade --install tpu-operator charts/tpu-operator --namespace "$NAMESPACE" --create-namespace "${VALUES[@]}"
quietly kubectl --namespace "$NAMESPACE" rollout status deployment/tpu-operator --timeout 180s || { explain; exit 1; }
kubectl --namespace "$NAMESPACE" get deployment tpu-operator

step "Applying $EXAMPLE"
kubectl delete --filename "$EXAMPLE" --ignore-not-found --timeout 120s
kubectl apply --filename "$EXAMPLE"
follow

step "The job"
kubectl get tpujob "$JOB" --output wide || true
step "What each host says"
host_logs
if [ "$PHASE" != Succeeded ]; then
  explain
  printf '\nThe job is %s after %d s, not Succeeded.\n' "${PHASE:-without a phase}" "$SECONDS" >&2
  exit 1
fi

step "The job has succeeded. Look around:"
[ -z "$OWN" ] || echo "  export KUBECONFIG=$KUBECONFIG PATH=$TOOLS:\$PATH"
cat <<EOF
  kubectl describe tpujob $JOB
  kubectl get pods,services --selector tpu-operator.dev/job=$JOB
  kubectl apply --filename examples/failing-host.yaml
EOF
[ -z "$OWN" ] || printf 'The cluster stays up. Remove it with:\n  make devcluster-down NAME=%s\n' "$NAME"
