#!/usr/bin/env python3
"""Writes the digests of the images of deploy/docker behind their tags, so that a build or a start takes the images
that were looked at, and no others. Run it again after a change of a tag. It asks the registries, without an account.
"""

import json
import re
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from packages import ROOT, SetupError

FILES = [ROOT / "deploy/docker/Dockerfile", ROOT / "deploy/docker/compose.yaml"]
IMAGE = re.compile(r"^(FROM|\s+image:) +([^\s@]+:[^\s@]+)(@sha256:\w+)?", re.M)
# An index first: it names the image of each architecture.
KINDS = ", ".join([
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
])


def place(image):
    """The host, the repository and the tag of an image.

    >>> place("busybox:1.37.0")
    ('registry-1.docker.io', 'library/busybox', '1.37.0')
    >>> place("prom/prometheus:v3.5.0")
    ('registry-1.docker.io', 'prom/prometheus', 'v3.5.0')
    >>> place("gcr.io/distroless/cc-debian12:nonroot")
    ('gcr.io', 'distroless/cc-debian12', 'nonroot')
    """
    name, _, tag = image.rpartition(":")
    host, _, repository = name.partition("/")
    if "." in host:
        return host, repository, tag
    return "registry-1.docker.io", name if "/" in name else f"library/{name}", tag


def pinned(text, digest_of):
    """The text of a file, with the digest of each image but our own.

    >>> pinned("FROM a:1@sha256:00 AS b\\nFROM b\\n  image: elf:0.1.0\\n  image: c/d:2\\n", lambda image: "sha256:ff")
    'FROM a:1@sha256:ff AS b\\nFROM b\\n  image: elf:0.1.0\\n  image: c/d:2@sha256:ff\\n'
    """
    def with_digest(found):
        word, image = found.group(1, 2)
        own = image.startswith("elf:")
        return found.group(0) if own else f"{word} {image}@{digest_of(image)}"

    return IMAGE.sub(with_digest, text)


def digest_of(image):
    host, repository, tag = place(image)
    request = Request(f"https://{host}/v2/{repository}/manifests/{tag}", headers={"accept": KINDS}, method="HEAD")
    try:
        answer = urlopen(request, timeout=30)
    except HTTPError as refused:
        if refused.code != 401:
            raise SetupError(f"{image}: {refused}") from None
        asked = dict(re.findall(r'(\w+)="([^"]*)"', refused.headers["www-authenticate"]))
        url = f"{asked['realm']}?service={asked.get('service', '')}&scope=repository:{repository}:pull"
        token = json.load(urlopen(url, timeout=30))
        request.add_header("authorization", f"Bearer {token.get('token') or token['access_token']}")
        answer = urlopen(request, timeout=30)
    digest = answer.headers["docker-content-digest"]
    print(f"pin: {image} is {digest}")
    return digest


def main():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        path.write_text(pinned(text, digest_of), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (SetupError, URLError) as error:
        sys.exit(f"pin: {error}; the rest is as it was")
