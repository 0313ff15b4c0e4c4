#!/bin/sh
# Makes the passwords that the services share, once, in the volume at /secrets. Only the
# user of the service that needs a file can read it.
set -eu
umask 077
cd /secrets

# 32 characters that need no escaping in a URL, in YAML or in TOML.
random() {
    head -c 24 /dev/urandom | base64 | tr '+/' '-_'
}

# write NAME USER-ID: standard input becomes the file, whole or not at all.
write() {
    cat > "$1.part"
    chown "$2" "$1.part"
    mv "$1.part" "$1"
}

if [ -e complete ]; then
    exit 0
fi
postgres=$(random)
qdrant=$(random)
random | write postgres_superuser_password 0
echo "$postgres" | write postgres_password 999
echo "postgres://elf:$postgres@postgres:5432/elf" | write database_url 65532
echo "service: {api_key: \"$qdrant\"}" | write qdrant.yaml 1000
echo "$qdrant" | write qdrant_api_key 65532
random | write admin_token 65532
random | write grafana_password 472
touch complete
