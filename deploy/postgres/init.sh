#!/bin/sh
# Run by the image of Postgres when it makes its data: the role of ELF's own.
set -eu
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --no-psqlrc --quiet \
    --set=ON_ERROR_STOP=1 --set=role=elf --set=password="$(cat /secrets/postgres_password)" \
    --file=/elf/role.sql
