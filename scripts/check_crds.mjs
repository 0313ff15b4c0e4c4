// Validates Kubernetes objects of other people's kinds: reads a JSON array of them,
// prints what is wrong. check_deploy.py runs a copy of it beside node_modules/.
import { readFileSync } from "node:fs";

const PACKAGES = { "keda.sh": "keda", "monitoring.coreos.com": "prometheus-operator" };

for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const [group, version] = object.apiVersion.split("/");
  const model = await import(`@kubernetes-models/${PACKAGES[group]}/${group}/${version}/${object.kind}`);
  try {
    new model[object.kind](object).validate();
  } catch (error) {
    console.log(`${object.kind} ${object.metadata.name}: ${error.message}`);
  }
}
