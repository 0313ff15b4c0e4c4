#!/usr/bin/env python3
"""Checks the files in deploy/, as far as that is possible without a container engine.

    scripts/check_deploy.py path/to/elf

It installs validators from PyPI and npm into .elf/, and checks syntax and schemas with
them. It also checks that the files agree with each other: paths, ports, names, keys,
metrics, times, versions. If a validator cannot be installed, the script says so and skips
that check. docs/operate/deploy.md lists what this script does not check.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import deploy_tools
import pin_images
from packages import ELF, ROOT, SetupError

DEPLOY = ROOT / "deploy"
DOCKER = DEPLOY / "docker"
KUBERNETES = DEPLOY / "kubernetes"
UNIT = DEPLOY / "systemd" / "elf.service"
# Ten times the limit: 2.0 is required, and the unit is better than that.
MAX_EXPOSURE = 15
OTHERS_KINDS = ("keda.sh/", "monitoring.coreos.com/")


class Skipped(Exception):
    """A check that is not possible here, and the reason."""


class Check:
    """One check, which collects problems."""

    def __init__(self):
        self.problems = []

    def that(self, holds, problem):
        if not holds:
            self.problems.append(problem)

    def runs(self, args, **options):
        """The output of a program. A failure of the program is a problem."""
        done = run(args, **options)
        self.that(done.returncode == 0, done.stdout.strip() or f"{args[0]} failed")
        return done.stdout


def run(args, **options):
    return subprocess.run(
        list(map(str, args)), stdin=None if "input" in options else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **options
    )


def need(program):
    if not shutil.which(program):
        raise Skipped(f"{program} is not installed")


def read(path):
    return path.read_text(encoding="utf-8")


# ---- the files that the checks read


def yaml_files():
    return sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".yml"))


def load_yaml(text):
    """Every document. A duplicate key in a mapping is an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.value != "<<"]
            twice = {key for key in keys if keys.count(key) > 1}
            if twice:
                raise yaml.YAMLError(f"duplicate key {twice.pop()!r}{node.start_mark}")
            return super().construct_mapping(node, deep)

    return [document for document in yaml.load_all(text, Loader) if document is not None]


def load_toml(text):
    import tomli

    return tomli.loads(text)


def manifest():
    return load_toml(read(ROOT / "Cargo.toml"))


class Configuration:
    """An elf.toml with its defaults, as the program itself reads it."""

    def __init__(self, path, elf):
        self.path = path
        text = read(path)
        # The files and variables of secrets do not exist here.
        self.secret_files = re.findall(r'^[^#\n]*"file:([^"]+)"', text, re.M)
        variables = re.findall(r'^[^#\n]*"env:([^"]+)"', text, re.M)
        with tempfile.TemporaryDirectory() as folder:
            secret = Path(folder) / "secret"
            secret.write_text("postgres://elf:password@postgres:5432/elf\n")
            copy = Path(folder) / "elf.toml"
            copy.write_text(re.sub(r'"file:[^"]+"', f'"file:{secret}"', text))
            environment = {**os.environ, **{name: "postgres://postgres/elf" for name in variables}}
            self.check = run([elf, "-c", copy, "config", "check"], env=environment)
            self.values = None
            if self.check.returncode == 0:
                self.values = load_toml(run([elf, "-c", copy, "config", "show"], env=environment).stdout)

    def __getitem__(self, key):
        """By its dotted name."""
        value = self.values
        if value is None:
            raise SetupError(f"{self.path.relative_to(ROOT)} does not pass elf config check")
        for part in key.split("."):
            value = value[part]
        return value

    @property
    def admin_port(self):
        return int(self["service.admin_bind"].rpartition(":")[2])


def seconds(text):
    """Of compose and systemd: "1m30s", "30", "15min"."""
    units = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
    parts = re.findall(r"(\d+)\s*([a-z]*)", str(text))
    return sum(int(number) * units[unit] for number, unit in parts)


def options(command):
    """The value after each --option of a command line."""
    return {name: value for name, value in zip(command, command[1:]) if name.startswith("--")}


# ---- the checks


def yaml_syntax(check):
    import yaml

    for path in yaml_files():
        try:
            load_yaml(read(path))
        except yaml.YAMLError as error:
            check.that(False, f"{path.relative_to(ROOT)}: {error}")


def configurations(check, elf):
    for path in (DOCKER / "elf.toml", KUBERNETES / "base" / "elf.toml", ROOT / "elf.toml.example"):
        done = Configuration(path, elf).check
        check.that(done.returncode == 0, f"{path.relative_to(ROOT)}: {done.stdout.strip()}")


def dockerfile(check, elf):
    text = read(DOCKER / "Dockerfile")
    check.runs([deploy_tools.tool("hadolint"), DOCKER / "Dockerfile"])
    package = manifest()["package"]
    check.runs([sys.executable, "-m", "doctest", ROOT / "scripts" / "pin_images.py"], cwd=ROOT / "scripts")
    check.that(f"FROM rust:{package['rust-version']}-" in text, "not built with the rust-version of Cargo.toml")
    check.that(f'version="{package["version"]}"' in text, "the label has another version than Cargo.toml")
    check.that(re.search(r"^USER [1-9]\d*:\d+$", text, re.M), "USER is no number")
    port = Configuration(DOCKER / "elf.toml", elf).admin_port
    check.that(f"EXPOSE {port}\n" in text, f"EXPOSE is not service.admin_bind's port {port}")
    features = re.search(r"--features (\S+)", text).group(1).split(",")
    check.that(set(features) <= set(manifest()["features"]), f"Cargo.toml has no feature {features}")


def build_context(check):
    """The files that .dockerignore lets through are a crate that cargo can read."""
    need("cargo")
    allowed = [line[1:] for line in read(ROOT / ".dockerignore").split() if line.startswith("!")]
    with tempfile.TemporaryDirectory() as folder:
        for name in allowed:
            source = ROOT / name
            check.that(source.exists(), f".dockerignore: there is no {name}")
            if source.is_dir():
                shutil.copytree(source, Path(folder) / name)
            elif source.exists():
                shutil.copy(source, folder)
        check.runs(["cargo", "metadata", "--offline", "--no-deps", "--format-version=1",
                    "--manifest-path", Path(folder) / "Cargo.toml"])
        for file in Path(folder).rglob("*.rs"):
            # Only outside of tests: the image does not compile tests.
            for name in re.findall(r'(?:include_str|include_bytes)!\("([^"]+)"\)', read(file).split("#[cfg(test)]")[0]):
                if "tests" not in file.with_suffix("").parts:
                    check.that((file.parent / name).exists(), f".dockerignore leaves out {name} of {file.name}")


def compose(check, elf):
    file = DOCKER / "compose.yaml"
    done = run([deploy_tools.tool("docker-compose"), "--file", file, "config", "--format", "json"])
    if done.returncode != 0:
        check.that(False, done.stdout.strip())
        return
    services = json.loads(done.stdout)["services"]
    config = Configuration(DOCKER / "elf.toml", elf)
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        check.that(":" in service["image"] and "latest" not in tag, f"{name}: {service['image']} names no version")
        for port in service.get("ports", []):
            check.that(port.get("host_ip") == "127.0.0.1", f"{name}: port {port['target']} is open to the network")
        for volume in service.get("volumes", []):
            if volume["type"] == "bind":
                source = Path(volume["source"])
                check.that(source.exists(), f"{name}: there is no {os.path.relpath(source, ROOT)}")
                check.that(volume.get("read_only"), f"{name}: {volume['target']} can be written")
        once = any(other.get("depends_on", {}).get(name, {}).get("condition") == "service_completed_successfully"
                   for other in services.values())
        check.that(once or "healthcheck" in service, f"{name}: no healthcheck")
        check.that(once or service.get("restart") == "unless-stopped", f"{name}: no restart policy")
        for other, how in service.get("depends_on", {}).items():
            healthy = how["condition"] != "service_healthy" or "healthcheck" in services[other]
            check.that(healthy, f"{name} waits for {other} to be healthy, which has no healthcheck")
        for variable in service.get("environment") or {}:
            secret = re.search("PASSWORD|SECRET|TOKEN|API_KEY", variable)
            check.that(not secret or variable.endswith("_FILE"), f"{name}: {variable} is in the clear")
        # A health check must ask its own container.
        probe = " ".join(service.get("healthcheck", {}).get("test", []))
        asked = {int(port) for port in re.findall(r"127\.0\.0\.1[:/](\d+)", probe)}
        served = {port["target"] for port in service.get("ports", [])} | {
            int(value) for option, value in options(service.get("command") or []).items() if option == "--port"}
        check.that(asked <= served, f"{name}: the health check asks port {asked}, but the service has {served}")

    worker = services["elf"]
    check.that([port["target"] for port in worker["ports"]] == [config.admin_port],
               "elf: its port is not that of service.admin_bind")
    grace = config["worker.grace_secs"]
    check.that(seconds(worker["stop_grace_period"]) > grace, f"elf: stop_grace_period is not above worker.grace_secs {grace}")
    version = manifest()["package"]["version"]
    check.that(worker["image"] == f"elf:{version}", f"elf: the image is not elf:{version}")

    written = set(re.findall(r"\| write (\S+) \d+", read(DOCKER / "secrets.sh")))
    init = DEPLOY / "postgres" / "init.sh"
    used = set(re.findall(r"/secrets/([\w.]+)", read(file) + read(init))) | {Path(path).name for path in config.secret_files}
    check.that(used == written, f"secrets.sh writes {sorted(written)}, used are {sorted(used)}")
    check.runs(["sh", "-n", DOCKER / "secrets.sh"])
    check.runs(["sh", "-n", init])

    embedding = options(services["embedding"]["command"])
    check.that(embedding["--model-id"] == config["providers.embedding.model"], "embedding: another model than in elf.toml")
    places = {
        "qdrant": (config["storage.qdrant.url"], {port["target"] for port in services["qdrant"]["ports"]}),
        "embedding": (config["providers.embedding.api_base"], {int(embedding["--port"])}),
    }
    for name, (url, ports) in places.items():
        place = urlsplit(url)
        check.that(place.hostname == name and (place.port or 80) in ports, f"elf.toml: {url} is not the service {name}")
    monitoring(check, services, config)


def monitoring(check, services, config):
    """Prometheus scrapes services that exist, and Grafana reads files that are mounted."""

    def mounted(service, path):
        """The file in the repository that is mounted at a path of a container."""
        for volume in services[service]["volumes"]:
            if volume["type"] == "bind" and Path(volume["target"]) in (Path(path), *Path(path).parents):
                return Path(volume["source"]) / Path(path).relative_to(volume["target"])
        return None

    path = options([part for word in services["prometheus"]["command"] for part in word.split("=")])["--config.file"]
    source = mounted("prometheus", path)
    if source is None or not source.exists():
        check.that(False, f"prometheus: nothing is mounted at {path}")
        return
    (settings,) = load_yaml(read(source))
    for pattern in settings.get("rule_files", []):
        rules = mounted("prometheus", Path(path).parent / pattern)
        found = rules and list(rules.parent.glob(rules.name))
        check.that(found, f"prometheus.yml: {pattern} matches no mounted file")
    ports = {name: {port["target"] for port in service.get("ports", [])} for name, service in services.items()}
    for job in settings["scrape_configs"]:
        for group in job.get("static_configs", []):
            for target in group["targets"]:
                host, _, port = target.partition(":")
                check.that(int(port) in ports.get(host, ()), f"prometheus.yml: {target} is no service with that port")
    provisioning = DEPLOY / "grafana" / "provisioning"
    for file in sorted(provisioning.rglob("*.yml")):
        (settings,) = load_yaml(read(file))
        for source in settings.get("datasources", []):
            place = urlsplit(source["url"])
            check.that(place.port in ports.get(place.hostname, ()), f"{file.name}: {source['url']} is no service")
        for provider in settings.get("providers", []):
            folder = mounted("grafana", provider["options"]["path"])
            found = folder and list(folder.glob("*.json"))
            check.that(found, f"{file.name}: no dashboard is mounted at {provider['options']['path']}")


def kubernetes_objects(check):
    need("kubectl")
    texts = [check.runs(["kubectl", "kustomize", KUBERNETES / "example"]), read(KUBERNETES / "secret.example.yaml")]
    rule = check.runs([KUBERNETES / "prometheusrule.sh"])
    # The base must also work without the example.
    check.runs(["kubectl", "kustomize", KUBERNETES / "base"])
    return [] if check.problems else [document for text in (*texts, rule) for document in load_yaml(text)]


def kubernetes_schemas(check):
    import kubernetes_validate

    for thing in kubernetes_objects(check):
        if not thing["apiVersion"].startswith(OTHERS_KINDS):
            try:
                kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)
            except Exception as error:
                check.that(False, f"{thing['kind']} {thing['metadata']['name']}: {str(error).splitlines()[0]}")


def crd_schemas(check):
    if not deploy_tools.have_node_packages():
        raise Skipped("node or npm is not installed, or there is no network")
    others = [thing for thing in kubernetes_objects(check) if thing["apiVersion"].startswith(OTHERS_KINDS)]
    script = shutil.copy(ROOT / "scripts" / "check_crds.mjs", deploy_tools.NODE)
    done = run(["node", script], input=json.dumps(others))
    check.that(done.returncode == 0 and not done.stdout.strip(), done.stdout.strip())
    # The schemas accept unknown keys. A key that no schema has is a typing error.
    known = set()
    for file in (deploy_tools.NODE / "node_modules").rglob("*.d.ts"):
        if any(part in ("keda.sh", "monitoring.coreos.com", "autoscaling", "apimachinery") for part in file.parts):
            known |= set(re.findall(r'"(\w+)"\??:', read(file)))
    for thing in others:
        for key in keys(thing["spec"]):
            check.that(key in known, f"{thing['kind']}: no schema knows {key}")


def keys(value):
    """The names of fields, without names that the user chooses."""
    if isinstance(value, list):
        for item in value:
            yield from keys(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in ("metadata", "matchLabels", "labels", "annotations"):
                yield from keys(inner)


def kubernetes(check, elf):
    things = {(thing["kind"], re.sub(r"-[0-9a-z]{10}$", "", thing["metadata"]["name"])): thing
              for thing in kubernetes_objects(check)}
    if not things:
        return
    config = Configuration(KUBERNETES / "base" / "elf.toml", elf)
    version = manifest()["package"]["version"]
    deployment = things["Deployment", "elf"]["spec"]
    secret = things["Secret", "elf"]["stringData"]
    labels = deployment["template"]["metadata"]["labels"]

    for kind, spec in (("Deployment", deployment), ("Job", things["Job", "elf-migrate"]["spec"])):
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        check.that(container["image"].endswith(f"elf:{version}"), f"{kind}: {container['image']} is not version {version}")
        check.that(run([elf, *container["args"], "--help"]).returncode == 0, f"{kind}: no command {container['args']}")
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        check.that(set(mounts) == {volume["name"] for volume in pod["volumes"]}, f"{kind}: volumes and mounts differ")
        check.that(mounts["config"] == "/etc/elf" and "ELF_CONFIG=/etc/elf/elf.toml" in read(DOCKER / "Dockerfile"),
                   f"{kind}: the configuration is not where the image looks")
        for file in config.secret_files:
            path = Path(file)
            check.that(str(path.parent) == mounts["secrets"] and path.name in secret, f"{kind}: no secret at {file}")
        for volume in pod["volumes"]:
            name = volume.get("secret", {}).get("secretName")
            check.that(name is None or ("Secret", name) in things, f"{kind}: there is no Secret {name}")
            name = volume.get("configMap", {}).get("name")
            check.that(name is None or any(thing["kind"] == "ConfigMap" and thing["metadata"]["name"] == name
                                           for thing in things.values()), f"{kind}: there is no ConfigMap {name}")

    grace = config["worker.grace_secs"]
    pod = deployment["template"]["spec"]
    check.that(pod["terminationGracePeriodSeconds"] > grace, f"terminationGracePeriodSeconds is not above worker.grace_secs {grace}")
    (container,) = pod["containers"]
    (port,) = container["ports"]
    check.that(port["containerPort"] == config.admin_port, "containerPort is not that of service.admin_bind")
    probes = {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    check.that(probes == {port["name"]}, f"the probes ask {probes}")

    service = things["Service", "elf"]
    (served,) = service["spec"]["ports"]
    check.that(served["targetPort"] == port["name"] and served["port"] == config.admin_port, "Service: another port")
    monitor = things["ServiceMonitor", "elf"]["spec"]
    check.that(monitor["endpoints"][0]["port"] == served["name"], "ServiceMonitor: another port than the Service's")
    selectors = {
        "Deployment": (deployment["selector"]["matchLabels"], labels),
        "Service": (service["spec"]["selector"], labels),
        "PodDisruptionBudget": (things["PodDisruptionBudget", "elf"]["spec"]["selector"]["matchLabels"], labels),
        "NetworkPolicy": (things["NetworkPolicy", "elf"]["spec"]["podSelector"]["matchLabels"], labels),
        "ServiceMonitor": (monitor["selector"]["matchLabels"], service["metadata"]["labels"]),
    }
    for kind, (selector, selected) in selectors.items():
        check.that(selector.items() <= selected.items(), f"{kind} selects nothing: {selector}")
    scaled = things["ScaledObject", "elf"]["spec"]
    check.that(("Deployment", scaled["scaleTargetRef"]["name"]) in things, "ScaledObject: no such Deployment")
    check.that("replicas" not in deployment, "the ScaledObject and the Deployment both set the number of workers")

    policy = things["NetworkPolicy", "elf"]["spec"]
    inward = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    check.that(inward == {served["targetPort"]}, f"NetworkPolicy lets in {inward}")
    outward = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    for url in (secret["database_url"], config["storage.qdrant.url"], config["providers.embedding.api_base"]):
        place = urlsplit(url)
        check.that((place.port or 80) in outward, f"NetworkPolicy does not let out to port {place.port or 80}")


def metrics(check):
    """Every metric in an expression exists."""
    catalog = read(ROOT / "src" / "telemetry" / "catalog.rs")
    known = set(re.findall(r'"(elf_\w+)"', catalog))
    for name in re.findall(r'histogram\(\s*"(elf_\w+)"', catalog):
        known |= {f"{name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    check.that(len(known) > 30, "src/telemetry/catalog.rs has another form than this script knows")
    # A name with colons is a recorded one.
    files = [path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".yml", ".json")]
    for path in files:
        for name in sorted(set(re.findall(r"(?<![:\w])elf_[a-z0-9_]+(?![:\w])", read(path))) - known):
            check.that(False, f"{path.relative_to(ROOT)}: there is no metric {name}")


def unit(check, elf):
    need("systemd-analyze")
    text = read(UNIT)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / UNIT.name
        # Neither the program nor the manual need be installed here.
        copy.write_text(text.replace("=/usr/bin/elf", f"={elf}").replace("=-/usr/bin/elf", f"=-{elf}"))
        out = check.runs(["systemd-analyze", "verify", "--man=no", copy])
        check.that(copy.name not in out, out.strip())
    done = run(["systemd-analyze", "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", "--no-pager", UNIT])
    check.that(done.returncode == 0, done.stdout.strip().splitlines()[-1])
    config = Configuration(ROOT / "elf.toml.example", elf)
    stop = seconds(re.search("^TimeoutStopSec=(.*)", text, re.M).group(1))
    check.that(stop > config["worker.grace_secs"], "TimeoutStopSec is not above worker.grace_secs")
    files = re.search(r"^LimitNOFILE=(\d+)", text, re.M)
    check.that(files and int(files.group(1)) >= 65536, "LimitNOFILE is not 65536 or more")


def debian(check):
    package = manifest()["package"]
    deb = package["metadata"]["deb"]
    placed = {}
    for source, target, mode in deb["assets"]:
        made = source.startswith(("target/", ".elf/"))
        check.that(made or list(ROOT.glob(source)), f"Cargo.toml: the asset {source} is not there")
        placed[target + Path(source).name if target.endswith("/") else target] = mode
    text = read(UNIT)
    programs = set(re.findall(r"^Exec\w+=-?(\S+)", text, re.M))
    check.that(programs <= {f"/{path}" for path in placed}, f"elf.service runs {programs}")
    (configuration,) = deb["conf-files"]
    check.that(placed.get(configuration.lstrip("/")) == "600", f"{configuration} can be read by every user")
    check.that(f":{configuration}\n" in text, f"elf.service does not read {configuration}")
    for key in ("changelog", "maintainer-scripts"):
        check.that((ROOT / deb[key]).exists(), f"Cargo.toml: there is no {deb[key]}")
    newest = read(ROOT / deb["changelog"]).split("\n")[0]
    check.that(newest.startswith(f"elf ({package['version']}-"), f"{deb['changelog']} begins with {newest}")
    check.runs(["sh", "-n", DEPLOY / "debian" / "postrm"])
    check.that("#DEBHELPER#" in read(DEPLOY / "debian" / "postrm"), "postrm leaves no room for what cargo-deb adds")


def images(check):
    """Every image but our own is named by its version and its digest."""
    for path in pin_images.FILES:
        for _, image, digest in pin_images.IMAGE.findall(read(path)):
            tag = image.rpartition(":")[2]
            check.that(tag != "latest", f"{path.name}: {image} names no version")
            check.that(digest or image.startswith("elf:"), f"{path.name}: {image} has no digest, run `make pin`")


def documentation(check):
    page = ROOT / "docs" / "operate" / "deploy.md"
    for link in re.findall(r"\]\(([^)#:]+)\)", read(page)):
        check.that((page.parent / link).exists(), f"docs/operate/deploy.md: there is no {link}")


def main(elf):
    checks = [
        ("YAML", "yaml", lambda check: yaml_syntax(check)),
        ("elf.toml (elf config check)", "yaml", lambda check: configurations(check, elf)),
        ("Dockerfile (hadolint)", "hadolint", lambda check: dockerfile(check, elf)),
        ("images", None, images),
        ("build context", None, build_context),
        ("compose.yaml (docker-compose)", "docker-compose", lambda check: compose(check, elf)),
        ("Kubernetes schemas (kubernetes-validate)", "kubernetes-validate", kubernetes_schemas),
        ("KEDA and Prometheus operator schemas (@kubernetes-models)", "yaml", crd_schemas),
        ("Kubernetes references", "yaml", lambda check: kubernetes(check, elf)),
        ("metrics", None, metrics),
        ("elf.service (systemd-analyze)", "yaml", lambda check: unit(check, elf)),
        ("Debian package", "yaml", debian),
        ("documentation", None, documentation),
    ]
    missing = deploy_tools.missing_python()
    failed = False
    for name, tool, body in checks:
        check = Check()
        try:
            for wanted in ("yaml", tool):
                if tool and wanted in missing:
                    raise Skipped(f"{wanted} could not be installed")
            body(check)
        except Skipped as why:
            print(f"SKIPPED {name}: {why}")
            continue
        except (SetupError, OSError, LookupError, ValueError) as error:
            check.that(False, f"{type(error).__name__}: {error}")
        failed = failed or bool(check.problems)
        print(f"{'FAILED' if check.problems else 'ok'}   {name}")
        for problem in check.problems:
            print(f"     {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/check_deploy.py path/to/elf")
    try:
        ELF.mkdir(exist_ok=True)
        deploy_tools.enter_venv()
        sys.exit(main(Path(sys.argv[1]).resolve()))
    except SetupError as error:
        sys.exit(f"check_deploy: {error}")
