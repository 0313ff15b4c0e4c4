#!/bin/sh
# The image of Postgres runs this when it makes its data. It makes a role for ELF.
set -eu
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --no-psqlrc --quiet \
    --set=ON_ERROR_STOP=1 --set=role=elf --set=password="$(cat /secrets/postgres_password)" \
    --file=/elf/role.sql
