package deploy_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// environ is a container's environment where every secret's value is "secret".
func environ(t *testing.T, objects map[string]any, c *corev1.Container) []string {
	t.Helper()
	var all []string
	for name, value := range objects["ConfigMap millrace"].(*corev1.ConfigMap).Data {
		all = append(all, name+"="+value)
	}
	secrets := map[string]string{}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			require.Equal(t, "millrace-nats", e.ValueFrom.SecretKeyRef.Name)
			require.Equal(t, e.Name, e.ValueFrom.SecretKeyRef.Key)
			value, secrets[e.Name] = "secret", "secret"
		}
		value = os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(value), func(name string) string {
			require.Contains(t, secrets, name, "used before it is set")
			return secrets[name]
		})
		all = append(all, e.Name+"="+value)
	}
	return all
}

// pods are the templates of all pods, by name.
func pods(objects map[string]any) map[string]*corev1.PodTemplateSpec {
	all := map[string]*corev1.PodTemplateSpec{}
	for _, object := range objects {
		switch o := object.(type) {
		case *appsv1.Deployment:
			all[o.Name] = &o.Spec.Template
		case *appsv1.StatefulSet:
			all[o.Name] = &o.Spec.Template
		}
	}
	return all
}

func TestEveryPodRunsWithoutPrivileges(t *testing.T) {
	all := pods(manifests(t))
	require.Len(t, all, 5)
	for name, pod := range all {
		spec := pod.Spec
		require.False(t, *spec.AutomountServiceAccountToken, name)
		require.False(t, *spec.EnableServiceLinks, "%s: services would add variables", name)
		require.True(t, *spec.SecurityContext.RunAsNonRoot, name)
		require.Equal(t, int64(10001), *spec.SecurityContext.RunAsUser, "%s: the image's user", name)
		require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, spec.SecurityContext.SeccompProfile.Type, name)
		for _, c := range spec.Containers {
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, name)
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, name)
			require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, name)
			require.Empty(t, c.SecurityContext.Capabilities.Add, name)
			require.NotNil(t, c.Resources.Limits.Memory(), name)
		}
	}
}

// A tag such as latest, or 2-alpine, is another image tomorrow.
var fullVersion = regexp.MustCompile(`:\d+\.\d+\.\d+(-[a-z]+)?$`)

func TestEveryImageHasAFullVersion(t *testing.T) {
	for name, pod := range pods(manifests(t)) {
		require.Regexp(t, fullVersion, pod.Spec.Containers[0].Image, name)
	}
	for name, service := range project(t, "load", "traces").Services {
		if service.Build == nil {
			require.Regexp(t, `:v?\d+\.\d+\.\d+(-[a-z]+)?$`, service.Image, name)
		}
	}
	nats := "nats:" + server.VERSION + "-alpine"
	require.Equal(t, nats, pods(manifests(t))["nats"].Spec.Containers[0].Image, "the version that the tests run")
	require.Equal(t, nats, project(t).Services["nats"].Image, "the version that the tests run")
}

func TestProcessesOfARoleSpreadOverNodes(t *testing.T) {
	objects := manifests(t)
	for _, role := range roles {
		pod := deployment(t, objects, role).Spec.Template
		require.Len(t, pod.Spec.TopologySpreadConstraints, 1, role)
		spread := pod.Spec.TopologySpreadConstraints[0]
		require.Equal(t, corev1.LabelHostname, spread.TopologyKey)
		require.Equal(t, pod.Labels, spread.LabelSelector.MatchLabels, role)
	}
}

func TestTheNATSServerHasTheShippedAccounts(t *testing.T) {
	var generator struct {
		metav1.TypeMeta    `json:",inline"`
		ConfigMapGenerator []struct {
			Name  string   `json:"name"`
			Files []string `json:"files"`
		} `json:"configMapGenerator"`
		GeneratorOptions struct {
			DisableNameSuffixHash bool `json:"disableNameSuffixHash"`
		} `json:"generatorOptions"`
	}
	text, err := os.ReadFile("nats/kustomization.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &generator))
	require.Equal(t, []string{"millrace.conf"}, generator.ConfigMapGenerator[0].Files)
	text, err = os.ReadFile("k8s/kustomization.yaml")
	require.NoError(t, err)
	require.Contains(t, string(text), "- ../nats\n")

	spec := pods(manifests(t))["nats"].Spec
	c := spec.Containers[0]
	require.Equal(t, generator.ConfigMapGenerator[0].Name, spec.Volumes[0].ConfigMap.Name)
	require.Equal(t, spec.Volumes[0].Name, c.VolumeMounts[1].Name)
	require.Equal(t, []string{"--config", c.VolumeMounts[1].MountPath + "/millrace.conf"}, c.Args[:2])
	require.Equal(t, "millrace-nats", c.EnvFrom[0].SecretRef.Name)
}

func TestEverySecretIsMadeByTheReadme(t *testing.T) {
	readme, err := os.ReadFile("k8s/README.md")
	require.NoError(t, err)
	made := regexp.MustCompile(`for user in ([A-Z ]+);`).FindStringSubmatch(string(readme))
	require.NotNil(t, made)
	var variables []string
	for user := range strings.FieldsSeq(made[1]) {
		variables = append(variables, "MILLRACE_NATS_"+user)
	}
	conf, err := os.ReadFile("nats/millrace.conf")
	require.NoError(t, err)
	for _, used := range regexp.MustCompile(`\$(MILLRACE_[A-Z_]+)`).FindAllStringSubmatch(string(conf), -1) {
		require.Contains(t, variables, used[1])
	}
	objects := manifests(t)
	for _, role := range roles {
		for _, e := range deployment(t, objects, role).Spec.Template.Spec.Containers[0].Env {
			if e.ValueFrom != nil {
				require.Contains(t, variables, e.ValueFrom.SecretKeyRef.Key)
			}
		}
	}
	gateway := deployment(t, objects, "gateway").Spec.Template.Spec
	keys := gateway.Volumes[len(gateway.Volumes)-1]
	require.Equal(t, int32(0o440), *keys.Secret.DefaultMode)
	require.Contains(t, string(readme), "create secret generic "+keys.Secret.SecretName+" --from-file=keys.yaml")
	settings := serveSettings(t, gateway.Containers[0].Args, environ(t, objects, &gateway.Containers[0]))
	require.Equal(t, "/etc/millrace/keys/keys.yaml", settings.APIKeys)
	require.Equal(t, "nats://front:secret@nats:4222", settings.NATSClients)
}

func TestTheNetworkIsClosedButForWhatRolesNeed(t *testing.T) {
	objects := manifests(t)
	policy := func(name string) networkingv1.NetworkPolicySpec {
		p, ok := objects["NetworkPolicy "+name].(*networkingv1.NetworkPolicy)
		require.True(t, ok, name)
		return p.Spec
	}
	both := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	deny := policy("default-deny")
	require.Equal(t, networkingv1.NetworkPolicySpec{PolicyTypes: both}, deny)

	nats := policy("nats")
	require.Equal(t, both, nats.PolicyTypes)
	require.Empty(t, nats.Egress)
	require.Len(t, nats.Ingress, 1)
	require.Equal(t, map[string]string{"app.kubernetes.io/name": "millrace"}, nats.Ingress[0].From[0].PodSelector.MatchLabels)
	require.Equal(t, "4222", nats.Ingress[0].Ports[0].Port.String())
	require.Subset(t, pods(objects)["nats"].Labels, nats.PodSelector.MatchLabels)

	for _, role := range roles {
		p := policy(role)
		require.Equal(t, both, p.PolicyTypes, role)
		require.Equal(t, deployment(t, objects, role).Spec.Template.Labels, p.PodSelector.MatchLabels)
		require.Len(t, p.Egress, 1, role)
		require.Subset(t, pods(objects)["nats"].Labels, p.Egress[0].To[0].PodSelector.MatchLabels)
		require.Equal(t, "4222", p.Egress[0].Ports[0].Port.String())
		require.Len(t, p.Ingress, 1, role)
		require.Equal(t, "8080", p.Ingress[0].Ports[0].Port.String())
		if role == "gateway" {
			require.Empty(t, p.Ingress[0].From, "requests come from everywhere")
		} else {
			require.Equal(t, "monitoring", p.Ingress[0].From[0].NamespaceSelector.MatchLabels[corev1.LabelMetadataName], role)
		}
	}
}
