#!/bin/sh
# Prints the rules of deploy/prometheus as a PrometheusRule. The Prometheus operator needs
# them inside of such an object, and kustomize cannot put them there.
#
#     deploy/kubernetes/prometheusrule.sh | kubectl apply --namespace elf -f -
set -eu
cd "$(dirname "$0")/../prometheus/rules"
cat <<'EOF'
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: elf
  labels:
    app.kubernetes.io/name: elf
spec:
  groups:
EOF
sed -e '/^groups:/d' -e 's/^/  /' ./*.yml
