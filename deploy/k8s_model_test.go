package deploy_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/millrace/millrace/models/hub"
)

// overlay reads a document of a folder beside deploy/k8s. A field that the kind does not have, or of another type, is an error.
func overlay[T any](t *testing.T, file string, document int) *T {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	into := new(T)
	require.NoError(t, yaml.UnmarshalStrict([]byte(strings.Split(string(text), "\n---\n")[document]), into), file)
	return into
}

// deploy/helm/test applies the patches with Kustomize's own package.
func TestTheModelIsOnAVolumeOfTheRolesThatNeedIt(t *testing.T) {
	var k struct {
		metav1.TypeMeta `json:",inline"`

		Namespace string   `json:"namespace"`
		Resources []string `json:"resources"`
		Patches   []struct {
			Path   string `json:"path"`
			Target struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
			} `json:"target"`
		} `json:"patches"`
	}
	text, err := os.ReadFile("k8s-model/kustomization.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &k))
	require.Equal(t, []string{"../k8s", "pull.yaml"}, k.Resources)
	require.Equal(t, "Deployment", k.Patches[1].Target.Kind)
	var patched []string
	for _, role := range roles {
		if role != "gateway" { // it learns the models from workers
			patched = append(patched, role)
		}
	}
	require.Equal(t, patched, strings.Split(k.Patches[1].Target.Name, "|"))

	pod := overlay[appsv1.Deployment](t, "k8s-model/volume.yaml", 0).Spec.Template.Spec
	claim := overlay[corev1.PersistentVolumeClaim](t, "k8s-model/pull.yaml", 0)
	require.Equal(t, claim.Name, pod.Volumes[0].PersistentVolumeClaim.ClaimName)
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, claim.Spec.AccessModes, "pods of several nodes mount it")
	mount := pod.Containers[0].VolumeMounts[0]
	require.Equal(t, pod.Volumes[0].Name, mount.Name)
	require.True(t, mount.ReadOnly)

	base, patch := manifests(t)["ConfigMap millrace"].(*corev1.ConfigMap), overlay[corev1.ConfigMap](t, "k8s-model/model.yaml", 0)
	require.Equal(t, base.Name, patch.Name)
	require.Equal(t, mount.MountPath, patch.Data["XDG_DATA_HOME"])
	_, err = hub.ParseName(patch.Data["MILLRACE_MODEL"])
	require.NoError(t, err)
}

func TestTheJobPullsTheModelToTheVolume(t *testing.T) {
	claim, job := overlay[corev1.PersistentVolumeClaim](t, "k8s-model/pull.yaml", 0), overlay[batchv1.Job](t, "k8s-model/pull.yaml", 1)
	spec, compute := job.Spec.Template.Spec, deployment(t, manifests(t), "compute").Spec.Template.Spec
	c := spec.Containers[0]
	require.Equal(t, []string{"pull", "$(MILLRACE_MODEL)"}, c.Args)
	require.Equal(t, compute.Containers[0].EnvFrom, c.EnvFrom, "the model and its place are those of the roles")
	require.Equal(t, compute.Containers[0].Image, c.Image)
	require.Equal(t, compute.Containers[0].SecurityContext, c.SecurityContext)
	require.Equal(t, compute.SecurityContext, spec.SecurityContext)
	require.Equal(t, compute.AutomountServiceAccountToken, spec.AutomountServiceAccountToken)
	require.Equal(t, compute.EnableServiceLinks, spec.EnableServiceLinks)
	require.Equal(t, corev1.RestartPolicyOnFailure, spec.RestartPolicy)
	require.Equal(t, claim.Name, spec.Volumes[0].PersistentVolumeClaim.ClaimName)
	served := overlay[appsv1.Deployment](t, "k8s-model/volume.yaml", 0).Spec.Template.Spec.Containers[0].VolumeMounts[0]
	require.Equal(t, served.MountPath, c.VolumeMounts[0].MountPath)
	require.False(t, c.VolumeMounts[0].ReadOnly)
	token := c.Env[0].ValueFrom.SecretKeyRef
	require.Equal(t, "HF_TOKEN", token.Key)
	require.True(t, *token.Optional, "most models need no account")
}

func TestOnlyTheJobReachesTheInternet(t *testing.T) {
	job, policy := overlay[batchv1.Job](t, "k8s-model/pull.yaml", 1), overlay[networkingv1.NetworkPolicy](t, "k8s-model/pull.yaml", 2)
	require.Equal(t, job.Spec.Template.Labels, policy.Spec.PodSelector.MatchLabels)
	for _, role := range roles {
		require.NotEqual(t, deployment(t, manifests(t), role).Spec.Template.Labels, policy.Spec.PodSelector.MatchLabels)
	}
	require.Empty(t, policy.Spec.Ingress)
	require.Len(t, policy.Spec.Egress, 1)
	require.Equal(t, "443", policy.Spec.Egress[0].Ports[0].Port.String())
	require.Len(t, policy.Spec.Egress[0].Ports, 1)
}

func TestComputePodsOnGPUsHaveOneEach(t *testing.T) {
	base, patch := deployment(t, manifests(t), "compute"), overlay[appsv1.Deployment](t, "k8s-gpu/compute.yaml", 0)
	require.Equal(t, base.Name, patch.Name)
	pod, c := patch.Spec.Template.Spec, patch.Spec.Template.Spec.Containers[0]
	require.Equal(t, base.Spec.Template.Spec.Containers[0].Name, c.Name)
	gpus := c.Resources.Limits["gpu.intel.com/xe"]
	require.Equal(t, int64(1), gpus.Value())
	require.Len(t, pod.SecurityContext.SupplementalGroups, 1)
	require.Zero(t, patch.Spec.Strategy.RollingUpdate.MaxSurge.IntValue())
	require.True(t, slices.ContainsFunc(dockerfile(t), func(s stage) bool {
		return strings.HasPrefix(c.Image, s.name+":") &&
			s.name != "millrace"
	}))
}
