package deploy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// servingRuntime has the fields of KServe's serving.kserve.io/v1alpha1 ServingRuntime for one model per pod.
type servingRuntime struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		SupportedModelFormats []struct {
			Name       string `json:"name"` // required
			Version    string `json:"version"`
			AutoSelect bool   `json:"autoSelect"`
			Priority   int32  `json:"priority"`
		} `json:"supportedModelFormats"`
		MultiModel       bool     `json:"multiModel"`
		Disabled         bool     `json:"disabled"`
		ProtocolVersions []string `json:"protocolVersions"`

		Containers       []corev1.Container            `json:"containers"` // required
		Volumes          []corev1.Volume               `json:"volumes"`
		NodeSelector     map[string]string             `json:"nodeSelector"`
		Affinity         *corev1.Affinity              `json:"affinity"`
		Tolerations      []corev1.Toleration           `json:"tolerations"`
		Labels           map[string]string             `json:"labels"`
		Annotations      map[string]string             `json:"annotations"`
		ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets"`
		HostIPC          bool                          `json:"hostIPC"`
	} `json:"spec"`
}

// inferenceService has the fields of KServe's serving.kserve.io/v1beta1 InferenceService that the example uses.
type inferenceService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Predictor struct {
			MinReplicas int32 `json:"minReplicas"`
			MaxReplicas int32 `json:"maxReplicas"`
			Model       struct {
				corev1.Container `json:",inline"`

				ModelFormat struct {
					Name    string `json:"name"` // required
					Version string `json:"version"`
				} `json:"modelFormat"` // required
				Runtime    string `json:"runtime"`
				StorageURI string `json:"storageUri"`
			} `json:"model"`
		} `json:"predictor"` // required
	} `json:"spec"`
}

// kserve reads a file of deploy/kserve. A field that the kind does not have, or of another type, is an error.
func kserve[T any](t *testing.T, file string) *T {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("kserve", file))
	require.NoError(t, err)
	into := new(T)
	require.NoError(t, yaml.UnmarshalStrict(text, into), file)
	for was, is := range map[string]string{"metadata:": "meta:", "resources:": "resource:"} {
		require.Error(t, yaml.UnmarshalStrict(bytes.Replace(text, []byte(was), []byte(is), 1), new(T)), is)
	}
	return into
}

func TestKServeRuntimeHasWhatKServeRequires(t *testing.T) {
	r := kserve[servingRuntime](t, "runtime.yaml")
	require.Equal(t, metav1.TypeMeta{APIVersion: "serving.kserve.io/v1alpha1", Kind: "ServingRuntime"}, r.TypeMeta)
	require.NotEmpty(t, r.Name)
	require.Len(t, r.Spec.SupportedModelFormats, 1)
	format := r.Spec.SupportedModelFormats[0]
	require.NotEmpty(t, format.Name)
	require.False(t, format.AutoSelect, "services that name no runtime keep KServe's own")
	require.False(t, r.Spec.MultiModel)
	require.False(t, r.Spec.Disabled)
	require.Len(t, r.Spec.Containers, 1)
	c := r.Spec.Containers[0]
	require.Equal(t, "kserve-container", c.Name, "KServe merges the model's fields into the container of this name")
	require.Regexp(t, fullVersion, c.Image)
	require.Len(t, c.Ports, 1)
	require.Empty(t, c.Ports[0].Name, "Knative knows h2c and http1 only")
	require.Equal(t, "8080", r.Spec.Annotations["prometheus.kserve.io/port"])

	s := kserve[inferenceService](t, "service.yaml")
	require.Equal(t, metav1.TypeMeta{APIVersion: "serving.kserve.io/v1beta1", Kind: "InferenceService"}, s.TypeMeta)
	model := s.Spec.Predictor.Model
	require.Equal(t, r.Name, model.Runtime)
	require.Equal(t, format.Name, model.ModelFormat.Name)
	require.True(t, strings.HasPrefix(model.StorageURI, "hf://"), model.StorageURI)
	require.LessOrEqual(t, s.Spec.Predictor.MinReplicas, s.Spec.Predictor.MaxReplicas)
}

// KServe starts a pod with the runtime's arguments, placeholders replaced, followed by the service's.
func TestKServeStartsMillraceWithFlagsThatItTakes(t *testing.T) {
	r, service := kserve[servingRuntime](t, "runtime.yaml"), kserve[inferenceService](t, "service.yaml")
	c := r.Spec.Containers[0]
	var args []string
	for _, a := range append(c.Args, service.Spec.Predictor.Model.Args...) {
		args = append(args, strings.ReplaceAll(a, "{{.Name}}", service.Name))
	}
	s := serveSettings(t, args, nil)
	require.Equal(t, "/mnt/models", s.Model, "where KServe's storage initializer puts a model")
	require.Equal(t, service.Name, s.ServedModelName)
	require.Equal(t, "0.0.0.0:8080", s.Listen)
	require.Equal(t, int32(8080), c.Ports[0].ContainerPort)
	require.Less(t, s.DrainDelay+s.Grace, 30*time.Second,
		"killed before its grace is over: a runtime cannot set the time, which is 30 s by default")
	for probe, path := range map[*corev1.Probe]string{
		c.StartupProbe: "/health/ready", c.ReadinessProbe: "/health/ready", c.LivenessProbe: "/health/live",
	} {
		require.Equal(t, path, probe.HTTPGet.Path)
		require.Equal(t, int32(8080), probe.HTTPGet.Port.IntVal)
	}
	volumes := map[string]bool{}
	for _, v := range r.Spec.Volumes {
		volumes[v.Name] = true
	}
	require.Len(t, c.VolumeMounts, len(volumes))
	for _, mount := range c.VolumeMounts {
		require.True(t, volumes[mount.Name], mount.Name)
		require.Contains(t, []string{s.DataDir, "/tmp", "/dev/shm"}, mount.MountPath)
	}
}

// A ServingRuntime runs a whole server in one pod: it needs what the pod of the role compute needs.
func TestKServeRunsMillraceAsTheManifestsDo(t *testing.T) {
	c := kserve[servingRuntime](t, "runtime.yaml").Spec.Containers[0]
	pod := deployment(t, manifests(t), "compute").Spec.Template.Spec
	want := pod.Containers[0]
	require.Equal(t, want.Image, c.Image)
	require.Equal(t, want.Resources, c.Resources)
	require.Equal(t, want.VolumeMounts, c.VolumeMounts)
	for _, probes := range [][2]*corev1.Probe{{want.StartupProbe, c.StartupProbe}, {want.ReadinessProbe, c.ReadinessProbe},
		{want.LivenessProbe, c.LivenessProbe}} {
		probes[1].HTTPGet.Port = probes[0].HTTPGet.Port // a name here, a number there
		require.Equal(t, probes[0], probes[1])
	}
	security := *want.SecurityContext // a runtime sets for the container what a manifest sets for the pod
	security.RunAsNonRoot, security.RunAsUser, security.RunAsGroup = pod.SecurityContext.RunAsNonRoot, pod.SecurityContext.RunAsUser,
		pod.SecurityContext.RunAsGroup
	security.SeccompProfile = pod.SecurityContext.SeccompProfile
	require.Equal(t, &security, c.SecurityContext)
	require.Equal(t, pod.Volumes, kserve[servingRuntime](t, "runtime.yaml").Spec.Volumes)
}
