#!/usr/bin/env bash
# make_certificates.sh DIRECTORY [DAYS]: an authority of its own, and certificates for client, scheduler and worker.
# Whoever has one of the keys can run any code on the cluster: the directory is for its owner alone.
set -euo pipefail
directory=${1:?the directory is missing: make_certificates.sh DIRECTORY [DAYS]} days=${2:-365}
[ ! -e "$directory/ca.pem" ] || { echo "$directory has certificates already; delete it to make others" >&2; exit 1; }
umask 077
mkdir -p "$directory"
chmod 700 "$directory"
cd "$directory"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1-key.pem"; }

key ca
openssl req -x509 -new -sha256 -key ca-key.pem -days "$days" -subj "/CN=dagad cluster" -out ca.pem \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
extensions=$(mktemp)
trap 'rm -f "$extensions"' EXIT
# Every part both asks and answers. Dask trusts whom the authority has signed for, wherever it runs.
printf '%s\n' "basicConstraints=CA:FALSE" "extendedKeyUsage=clientAuth,serverAuth" "subjectAltName=DNS:dask" > "$extensions"
for role in client scheduler worker; do
    key "$role"
    openssl req -new -sha256 -key "$role-key.pem" -subj "/CN=dask-$role" |
        openssl x509 -req -sha256 -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days "$days" -extfile "$extensions" \
            -out "$role.pem" 2>/dev/null
done
rm -f ca-key.pem ca.srl # nobody can sign for others later; make all anew instead

# The same as settings of Dask: with DASK_CONFIG=DIRECTORY/dask.yaml every cluster and every client uses them.
{
    printf 'distributed:\n  comm:\n    default-scheme: tls\n    require-encryption: true\n    tls:\n      ca-file: "%s/ca.pem"\n' "$PWD"
    for role in client scheduler worker; do
        printf '      %s:\n        cert: "%s/%s.pem"\n        key: "%s/%s-key.pem"\n' "$role" "$PWD" "$role" "$PWD" "$role"
    done
} > dask.yaml
