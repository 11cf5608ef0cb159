// Package chart_test renders the chart with Helm's own packages and the manifests with Kustomize's, and compares the objects field by
// field. It is a module of its own because Helm brings 70 modules with it, among them client-go, which the program does not need.
package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const chartDir = "../millrace"

// An object is a manifest as JSON has it.
type object = map[string]any

// add parses the documents of a text into all, by kind and name.
func add(t *testing.T, all map[string]object, text string) {
	t.Helper()
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o object
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &o), document)
		if o == nil {
			continue
		}
		metadata, ok := o["metadata"].(object)
		require.True(t, ok, document)
		key := o["kind"].(string) + " " + metadata["name"].(string)
		require.NotContains(t, all, key)
		all[key] = o
	}
}

// values parses the values that a test sets.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	set := map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &set))
	return set
}

// tryRender renders the chart with the values, as `helm install --namespace millrace` does.
func tryRender(t *testing.T, set map[string]any) (map[string]string, error) {
	t.Helper()
	chart, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	release := common.ReleaseOptions{Name: "millrace", Namespace: "millrace", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, set, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

// render returns the objects of the chart with the values, and what Helm prints after the installation.
func render(t *testing.T, set string) (objects map[string]object, notes string) {
	t.Helper()
	files, err := tryRender(t, values(t, set))
	require.NoError(t, err)
	objects = map[string]object{}
	for name, text := range files {
		if filepath.Base(name) == "NOTES.txt" {
			notes = text
			continue
		}
		add(t, objects, text)
	}
	return objects, notes
}

// manifests returns the objects of a folder of manifests, without the namespace that Helm gives to all objects.
func manifests(t *testing.T, folder string) map[string]object {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	require.NoError(t, err)
	text, err := built.AsYaml()
	require.NoError(t, err)
	objects := map[string]object{}
	add(t, objects, string(text))
	for name, o := range objects {
		metadata := o["metadata"].(object)
		require.Equal(t, "millrace", metadata["namespace"], name)
		delete(metadata, "namespace")
	}
	return objects
}

// ownAnnotations are what the chart has beside the manifests: Helm's means for what kubectl users do by hand.
var ownAnnotations = []string{"checksum/config", "helm.sh/resource-policy"}

// normalize removes the chart's own annotations, and sorts the lists whose order means nothing.
func normalize(o object) {
	for key, value := range o {
		if list, ok := value.([]any); ok {
			for _, element := range list {
				if m, ok := element.(object); ok {
					normalize(m)
				}
			}
			if key == "volumes" || key == "volumeMounts" { // Kustomize puts those of a patch first
				slices.SortFunc(list, func(a, b any) int {
					return strings.Compare(a.(object)["name"].(string), b.(object)["name"].(string))
				})
			}
		}
		m, ok := value.(object)
		if !ok {
			continue
		}
		normalize(m)
		if key == "annotations" {
			maps.DeleteFunc(m, func(name string, _ any) bool { return slices.Contains(ownAnnotations, name) })
			if len(m) == 0 {
				delete(o, key)
			}
		}
	}
}

// requireSame compares the objects of the chart with those of the manifests.
func requireSame(t *testing.T, want, got map[string]object) {
	t.Helper()
	require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got)))
	for name := range want {
		normalize(want[name])
		normalize(got[name])
		require.Equal(t, want[name], got[name], name)
	}
}

// scaled are the values for a cluster with KEDA, as the manifests expect it.
const scaled = "scaling: {enabled: true}\n"

func TestTheChartIsTheManifests(t *testing.T) {
	got, _ := render(t, scaled)
	requireSame(t, manifests(t, "../../k8s"), got)
}

func TestTheChartWithAPulledModelIsTheManifestsWithOne(t *testing.T) {
	got, notes := render(t, scaled+"model: {name: Qwen/Qwen3-0.6B, pull: true}\n")
	requireSame(t, manifests(t, "../../k8s-model"), got)
	require.Contains(t, notes, "job/pull")
	require.Contains(t, notes, "Qwen/Qwen3-0.6B")
}

func TestPatchesForGPUsChangeComputePodsOnly(t *testing.T) {
	want, got := manifests(t, "../../k8s"), manifests(t, "../../k8s-gpu")
	compute := typed[appsv1.Deployment](t, got["Deployment compute"])
	require.Equal(t, "millrace-gpu:0.1.0", compute.Spec.Template.Spec.Containers[0].Image)
	require.Equal(t, []string{"serve", "--roles", "compute"}, compute.Spec.Template.Spec.Containers[0].Args)
	require.Equal(t, int64(10001), *compute.Spec.Template.Spec.SecurityContext.RunAsUser)
	require.Contains(t, compute.Spec.Template.Spec.Containers[0].Resources.Limits, corev1.ResourceMemory)
	delete(want, "Deployment compute")
	delete(got, "Deployment compute")
	requireSame(t, want, got)
}

func TestWithoutKEDAReplicasAreFixed(t *testing.T) {
	want := manifests(t, "../../k8s")
	for _, role := range []string{"tokenize", "detok"} {
		delete(want, "ScaledObject "+role)
		want["Deployment "+role]["spec"].(object)["replicas"] = float64(2)
	}
	got, notes := render(t, "")
	requireSame(t, want, got)
	require.NotContains(t, notes, "pull")
}

// typed reads an object into Kubernetes' own type. A field that the kind does not have, or of another type, is an error.
func typed[T any](t *testing.T, o object) *T {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	into := new(T)
	require.NoError(t, yaml.UnmarshalStrict(text, into))
	return into
}

// everything sets each value that the chart has to another one than its default.
const everything = `
image: registry.example/millrace@sha256:` + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" + `
imagePullSecrets: [{name: registry}]
model: {name: /mnt/models/llama, volume: {image: {reference: registry.example/llama:1.0.0}}}
config: {MILLRACE_KV_MEMORY: 4294967296, MILLRACE_MAX_BATCH_SIZE: 32, MILLRACE_PARSE_SPECIAL: false}
terminationGracePeriodSeconds: 90
secrets: {nats: passwords, keys: api-keys, hub: account}
roles:
  compute:
    replicas: 3
    startup: 900
    shm: 9Gi
    resources: {limits: {memory: 16Gi}}
    nodeSelector: {cpu: amx}
    tolerations: [{key: llm, operator: Exists}]
nats: {image: "nats:2.15.3-alpine", storage: 9Gi, resources: {limits: {memory: 3Gi}}}
networkPolicy: {metricsNamespace: observability}
ingress: {enabled: true, className: nginx, host: llm.example, tlsSecret: llm-tls, annotations: {nginx.ingress.kubernetes.io/proxy-buffering: "off"}}
`

func TestEveryValueArrives(t *testing.T) {
	got, _ := render(t, everything)
	compute := typed[appsv1.Deployment](t, got["Deployment compute"])
	require.Equal(t, int32(3), *compute.Spec.Replicas)
	pod := compute.Spec.Template.Spec
	require.Equal(t, "registry", pod.ImagePullSecrets[0].Name)
	require.Equal(t, int64(90), *pod.TerminationGracePeriodSeconds)
	require.Equal(t, map[string]string{"cpu": "amx"}, pod.NodeSelector)
	require.Equal(t, []corev1.Toleration{{Key: "llm", Operator: corev1.TolerationOpExists}}, pod.Tolerations)
	c := pod.Containers[0]
	require.True(t, strings.HasPrefix(c.Image, "registry.example/millrace@sha256:"))
	require.Equal(t, int32(900), c.StartupProbe.FailureThreshold)
	require.Equal(t, "16Gi", c.Resources.Limits.Memory().String())
	require.Equal(t, "4", c.Resources.Requests.Cpu().String(), "the default remains")
	require.Equal(t, "passwords", c.Env[0].ValueFrom.SecretKeyRef.Name)
	mounted := map[string]corev1.Volume{}
	for _, v := range pod.Volumes {
		mounted[v.Name] = v
	}
	require.Equal(t, "9Gi", mounted["shm"].EmptyDir.SizeLimit.String())
	require.Equal(t, "registry.example/llama:1.0.0", mounted["models"].Image.Reference)
	require.Contains(t, c.VolumeMounts, corev1.VolumeMount{Name: "models", MountPath: "/mnt/models", ReadOnly: true})

	gateway := typed[appsv1.Deployment](t, got["Deployment gateway"]).Spec.Template.Spec
	require.Equal(t, int32(2), *typed[appsv1.Deployment](t, got["Deployment gateway"]).Spec.Replicas, "of one role only")
	require.Equal(t, "api-keys", gateway.Volumes[len(gateway.Volumes)-1].Secret.SecretName)

	config := typed[corev1.ConfigMap](t, got["ConfigMap millrace"]).Data
	require.Equal(t, "/mnt/models/llama", config["MILLRACE_MODEL"])
	require.Equal(t, "4294967296", config["MILLRACE_KV_MEMORY"], "Helm has numbers as floats")
	require.Equal(t, "false", config["MILLRACE_PARSE_SPECIAL"])
	require.Equal(t, "32", config["MILLRACE_MAX_BATCH_SIZE"])
	require.Equal(t, "30s", config["MILLRACE_GRACE"], "the default remains")

	nats := typed[appsv1.StatefulSet](t, got["StatefulSet nats"]).Spec
	require.Equal(t, "nats:2.15.3-alpine", nats.Template.Spec.Containers[0].Image)
	require.Equal(t, "3Gi", nats.Template.Spec.Containers[0].Resources.Limits.Memory().String())
	require.Equal(t, "passwords", nats.Template.Spec.Containers[0].EnvFrom[0].SecretRef.Name)
	require.Equal(t, "9Gi", nats.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String())

	policy := typed[networkingv1.NetworkPolicy](t, got["NetworkPolicy compute"]).Spec
	require.Equal(t, "observability", policy.Ingress[0].From[0].NamespaceSelector.MatchLabels[corev1.LabelMetadataName])

	ingress := typed[networkingv1.Ingress](t, got["Ingress gateway"])
	require.Equal(t, "nginx", *ingress.Spec.IngressClassName)
	require.Equal(t, []networkingv1.IngressTLS{{Hosts: []string{"llm.example"}, SecretName: "llm-tls"}}, ingress.Spec.TLS)
	require.Equal(t, "llm.example", ingress.Spec.Rules[0].Host)
	require.Equal(t, "off", ingress.Annotations["nginx.ingress.kubernetes.io/proxy-buffering"])
	service := typed[corev1.Service](t, got["Service gateway"])
	to := ingress.Spec.Rules[0].HTTP.Paths[0].Backend.Service
	require.Equal(t, service.Name, to.Name)
	require.Equal(t, service.Spec.Ports[0].Name, to.Port.Name)
	for name, o := range got {
		if strings.HasPrefix(name, "PodDisruptionBudget ") {
			typed[policyv1.PodDisruptionBudget](t, o)
		}
	}
}

// A volume that exists takes the model in place of the chart's own claim.
func TestAModelIsPulledToAVolumeThatExists(t *testing.T) {
	got, _ := render(t, "model: {name: o/r, pull: true, volume: {persistentVolumeClaim: {claimName: shared}}}\nsecrets: {hub: account}\n")
	require.NotContains(t, got, "PersistentVolumeClaim models")
	job := typed[batchv1.Job](t, got["Job pull"]).Spec.Template.Spec
	require.Equal(t, "shared", job.Volumes[0].PersistentVolumeClaim.ClaimName)
	require.Equal(t, "account", job.Containers[0].Env[0].ValueFrom.SecretKeyRef.Name)
	compute := typed[appsv1.Deployment](t, got["Deployment compute"]).Spec.Template.Spec
	require.Equal(t, "shared", compute.Volumes[2].PersistentVolumeClaim.ClaimName)
	got, _ = render(t, "model: {name: o/r, pull: true, claim: {storageClassName: nfs, size: 9Gi, accessModes: [ReadWriteOnce]}}\n")
	claim := typed[corev1.PersistentVolumeClaim](t, got["PersistentVolumeClaim models"])
	require.Equal(t, "nfs", *claim.Spec.StorageClassName)
	require.Equal(t, "9Gi", claim.Spec.Resources.Requests.Storage().String())
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, claim.Spec.AccessModes)
	require.Equal(t, "keep", claim.Annotations["helm.sh/resource-policy"])
}

func TestPartsCanBeLeftOut(t *testing.T) {
	got, _ := render(t, "nats: {enabled: false}\nnetworkPolicy: {enabled: false}\nmodel: {name: o/r, pull: true}\n")
	for name := range got {
		require.NotContains(t, name, "NetworkPolicy")
		require.NotContains(t, name, "nats")
	}
	require.Contains(t, got, "Job pull")
}

// Another setting starts new pods, since a process reads its environment at its start.
func TestAnotherConfigIsAnotherPod(t *testing.T) {
	annotation := func(set string) string {
		got, _ := render(t, set)
		return typed[appsv1.Deployment](t, got["Deployment compute"]).Spec.Template.Annotations["checksum/config"]
	}
	require.Len(t, annotation(""), 64)
	require.Equal(t, annotation(""), annotation(scaled))
	require.NotEqual(t, annotation(""), annotation("config: {MILLRACE_GRACE: 31s}\n"))
	require.NotEqual(t, annotation(""), annotation("model: {name: /models/other}\n"))
}

func TestUnknownValuesAreRefused(t *testing.T) {
	for set, want := range map[string]string{
		"replicas: 3":                                    "replicas",
		"roles: {worker: {replicas: 1}}":                 "worker",
		"roles: {compute: {replica: 1}}":                 "replica",
		"roles: {compute: {replicas: two}}":              "replicas",
		"image: millrace":                                "image",
		"config: {kv-memory: 1GiB}":                      "kv-memory",
		"config: {MILLRACE_MODEL: /models/x}":            "MILLRACE_MODEL",
		"model: {path: /models/x}":                       "path",
		"ingress: {enabled: true, hosts: [llm.example]}": "hosts",
	} {
		_, err := tryRender(t, values(t, set))
		require.ErrorContains(t, err, want, set)
	}
}

func TestLintFindsNothing(t *testing.T) {
	for _, set := range []string{"", scaled, everything, scaled + "model: {name: o/r, pull: true}\n"} {
		for _, m := range lint.RunAll(chartDir, values(t, set), "millrace").Messages {
			require.Less(t, m.Severity, support.WarningSev, "%s: %v", m.Path, m.Err) // that a chart should have an icon is an info
		}
	}
}

// The accounts of the NATS server are a link: a copy could differ.
func TestTheAccountsAreTheShippedOnes(t *testing.T) {
	target, err := filepath.EvalSymlinks(filepath.Join(chartDir, "files/millrace.conf"))
	require.NoError(t, err)
	require.Equal(t, "../../nats/millrace.conf", target)
	text, err := os.ReadFile("../../nats/millrace.conf")
	require.NoError(t, err)
	got, _ := render(t, "")
	require.Equal(t, string(text), typed[corev1.ConfigMap](t, got["ConfigMap nats-config"]).Data["millrace.conf"])
}
