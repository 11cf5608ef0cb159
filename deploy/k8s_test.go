package deploy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// scaledObject and kustomization are the parts that are used here of types whose
// Go packages would bring half of Kubernetes with them.
type scaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicaCount int `json:"minReplicaCount"`
		MaxReplicaCount int `json:"maxReplicaCount"`
		CooldownPeriod  int `json:"cooldownPeriod"`
		Triggers        []struct {
			Type     string            `json:"type"`
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

type kustomization struct {
	metav1.TypeMeta `json:",inline"`

	Namespace string   `json:"namespace"`
	Resources []string `json:"resources"`
}

// manifestKinds makes an empty object of each kind that the manifests may have.
var manifestKinds = map[string]func() any{
	"v1 ConfigMap":                  func() any { return new(corev1.ConfigMap) },
	"v1 Service":                    func() any { return new(corev1.Service) },
	"apps/v1 Deployment":            func() any { return new(appsv1.Deployment) },
	"apps/v1 StatefulSet":           func() any { return new(appsv1.StatefulSet) },
	"policy/v1 PodDisruptionBudget": func() any { return new(policyv1.PodDisruptionBudget) },

	"networking.k8s.io/v1 NetworkPolicy": func() any { return new(networkingv1.NetworkPolicy) },
	"keda.sh/v1alpha1 ScaledObject":      func() any { return new(scaledObject) },
}

// manifests are the objects of deploy/k8s by kind and name. A field that the kind
// does not have, or of another type, is an error.
func manifests(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("k8s/kustomization.yaml")
	require.NoError(t, err)
	var all kustomization
	require.NoError(t, yaml.UnmarshalStrict(text, &all))
	files, err := filepath.Glob("k8s/*.yaml")
	require.NoError(t, err)
	require.Len(t, all.Resources, len(files), "every file but kustomization.yaml itself, and ../nats")
	objects := map[string]any{}
	for _, file := range all.Resources {
		if file == "../nats" {
			continue // see TestTheNATSServerHasTheShippedAccounts
		}
		text, err := os.ReadFile(filepath.Join("k8s", file))
		require.NoError(t, err)
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var head struct {
				metav1.TypeMeta `json:",inline"`
				Metadata        metav1.ObjectMeta `json:"metadata"`
			}
			require.NoError(t, yaml.Unmarshal(document, &head), file)
			empty, ok := manifestKinds[head.APIVersion+" "+head.Kind]
			require.True(t, ok, "%s: %s %s", file, head.APIVersion, head.Kind)
			object := empty()
			require.NoError(t, yaml.UnmarshalStrict(document, object), file)
			objects[head.Kind+" "+head.Metadata.Name] = object
		}
	}
	return objects
}

func deployment(t *testing.T, objects map[string]any, name string) *appsv1.Deployment {
	t.Helper()
	d, ok := objects["Deployment "+name].(*appsv1.Deployment)
	require.True(t, ok, name)
	return d
}

func TestEveryRoleIsADeploymentWithSettingsThatItTakes(t *testing.T) {
	objects := manifests(t)
	for _, role := range roles {
		d := deployment(t, objects, role)
		pod := d.Spec.Template
		require.Equal(t, d.Spec.Selector.MatchLabels, pod.Labels, role)
		require.Len(t, pod.Spec.Containers, 1)
		c := pod.Spec.Containers[0]
		require.Equal(t, []string{"serve", "--roles", role}, c.Args)
		require.Equal(t, "millrace", c.EnvFrom[0].ConfigMapRef.Name)
		s := serveSettings(t, c.Args, environ(t, objects, &c))
		require.Equal(t, "nats://"+role+":secret@nats:4222", s.NATS)
		require.Greater(t, time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second, s.DrainDelay+s.Grace,
			"%s: killed before its grace is over", role)
		require.Contains(t, pod.Annotations["prometheus.io/port"], "8080")
		for probe, path := range map[*corev1.Probe]string{
			c.StartupProbe: "/health/ready", c.ReadinessProbe: "/health/ready", c.LivenessProbe: "/health/live",
		} {
			require.Equal(t, path, probe.HTTPGet.Path, role)
			require.Equal(t, c.Ports[0].Name, probe.HTTPGet.Port.String())
		}
		require.True(t, strings.HasSuffix(s.Listen, ":8080"))
		require.Equal(t, int32(8080), c.Ports[0].ContainerPort)
		for _, mount := range c.VolumeMounts {
			require.Contains(t, []string{s.DataDir, "/tmp", "/dev/shm", filepath.Dir(s.APIKeys)}, mount.MountPath)
		}
		budget := objects["PodDisruptionBudget "+role].(*policyv1.PodDisruptionBudget)
		require.Equal(t, pod.Labels, budget.Spec.Selector.MatchLabels)
	}
}

func TestServicesSelectPods(t *testing.T) {
	objects := manifests(t)
	gateway := objects["Service gateway"].(*corev1.Service)
	require.Equal(t, deployment(t, objects, "gateway").Spec.Template.Labels, gateway.Spec.Selector)
	require.Equal(t, "http", gateway.Spec.Ports[0].TargetPort.String())
	service, set := objects["Service nats"].(*corev1.Service), objects["StatefulSet nats"].(*appsv1.StatefulSet)
	require.Subset(t, set.Spec.Template.Labels, service.Spec.Selector)
	require.Equal(t, service.Name, set.Spec.ServiceName)
	c := set.Spec.Template.Spec.Containers[0]
	require.Equal(t, set.Spec.VolumeClaimTemplates[0].Name, c.VolumeMounts[0].Name)
	require.Contains(t, c.Args, c.VolumeMounts[0].MountPath)
	require.Contains(t, c.Args, "8222")
}

func TestScalingLooksAtTheQueueOfItsOwnRole(t *testing.T) {
	objects := manifests(t)
	scaled := 0
	for _, object := range objects {
		s, ok := object.(*scaledObject)
		if !ok {
			continue
		}
		scaled++
		require.Nil(t, deployment(t, objects, s.Spec.ScaleTargetRef.Name).Spec.Replicas, "two would set the number of %s", s.Name)
		require.GreaterOrEqual(t, s.Spec.MinReplicaCount, 2, "one may die")
		require.Equal(t, "prometheus", s.Spec.Triggers[0].Type)
		query := s.Spec.Triggers[0].Metadata["query"]
		require.Contains(t, query, `stage="`+s.Spec.ScaleTargetRef.Name+`"`)
		requireSeries(t, query)
	}
	require.Equal(t, 2, scaled, "tokenize and detok")
}

func TestAManifestWithAnUnknownFieldIsAnError(t *testing.T) {
	text, err := os.ReadFile("k8s/compute.yaml")
	require.NoError(t, err)
	first, _, _ := bytes.Cut(text, []byte("\n---\n"))
	require.NoError(t, yaml.UnmarshalStrict(first, new(appsv1.Deployment)))
	for was, is := range map[string]string{"replicas:": "replica:", "periodSeconds: 5": "periodSeconds: five"} {
		require.Error(t, yaml.UnmarshalStrict(bytes.Replace(first, []byte(was), []byte(is), 1), new(appsv1.Deployment)), is)
	}
}
