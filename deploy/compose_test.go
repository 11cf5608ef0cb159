// Package deploy_test checks the Dockerfile and docker-compose.yml as far as
// that goes without a container engine: the compose schema, the services, and
// that the command lines in both are ones that Millrace takes.
package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/config"
)

const (
	root       = ".."
	readyCheck = "http://127.0.0.1:8080/health/ready"
)

// load reads a compose file against the schema, with the services that are on
// under the profiles.
func load(t *testing.T, text []byte, profiles ...string) (*types.Project, error) {
	t.Helper()
	directory, err := filepath.Abs(root)
	require.NoError(t, err)
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  directory,
		ConfigFiles: []types.ConfigFile{{Filename: "docker-compose.yml", Content: text}},
	}, loader.WithProfiles(profiles))
}

func composeFile(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	require.NoError(t, err)
	return text
}

func project(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	p, err := load(t, composeFile(t), profiles...)
	require.NoError(t, err)
	return p
}

func TestComposeFileHoldsToTheSchema(t *testing.T) {
	text := composeFile(t)
	_, err := load(t, text)
	require.NoError(t, err)
	for was, is := range map[string]string{
		"restart:":                   "restarts:",
		"interval: 5s":               "interval: [5]",
		"scale: 2":                   "scale: two",
		"condition: service_healthy": "condition: service_happy",
		"nats-data:/data":            "other-data:/data",
	} {
		broken := bytes.Replace(text, []byte(was), []byte(is), 1)
		require.NotEqual(t, text, broken, was)
		_, err := load(t, broken)
		require.Error(t, err, "%s for %s", is, was)
	}
}

// roles are the services that are Millrace's processes.
var roles = []string{"gateway", "tokenize", "compute", "detok"}

func TestK6JaegerAndGPUsRunOnlyUnderTheirProfiles(t *testing.T) {
	always := append([]string{"nats", "prometheus", "grafana"}, roles...)
	require.ElementsMatch(t, always, project(t).ServiceNames())
	require.ElementsMatch(t, append(always, "k6"), project(t, "load").ServiceNames())
	require.ElementsMatch(t, append(always, "jaeger"), project(t, "traces").ServiceNames())
	require.ElementsMatch(t, append(always, "compute-gpu"), project(t, "gpu").ServiceNames())
}

func TestPortsArePublishedOnTheLoopbackInterfaceOnly(t *testing.T) {
	published := map[string]string{}
	for name, service := range project(t, "load", "traces").Services {
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s: port %s", name, port.Published)
			published[port.Published] = name
		}
	}
	require.Equal(t, map[string]string{"8080-8081": "gateway", "4222": "nats", "9090": "prometheus", "3000": "grafana", "16686": "jaeger"},
		published)
}

func TestServicesWaitUntilTheirServersAreHealthy(t *testing.T) {
	services := project(t, "load").Services
	waits := map[string]string{"k6": "gateway", "grafana": "prometheus"}
	for _, role := range roles {
		waits[role] = "nats"
	}
	for name, server := range waits {
		require.Equal(t, types.ServiceConditionHealthy, services[name].DependsOn[server].Condition, name)
		if services[server].Build == nil { // the image of a role has its own, see TestImageStartsMillraceWithFlagsThatItTakes
			require.NotNil(t, services[server].HealthCheck, server)
			require.False(t, services[server].HealthCheck.Disable, server)
		}
	}
	require.Contains(t, services["nats"].HealthCheck.Test, "http://127.0.0.1:8222/healthz")
	require.Contains(t, services["nats"].Command, "8222")
}

func TestComposeStartsTwoProcessesOfEachRoleWithSettingsThatTheyTake(t *testing.T) {
	services := project(t).Services
	for _, role := range roles {
		service := services[role]
		require.Equal(t, []string{"serve", "--roles", role}, []string(service.Command))
		require.Equal(t, 2, *service.Scale, role)
		var environ []string
		for name, value := range service.Environment {
			environ = append(environ, name+"="+*value)
		}
		s := serveSettings(t, service.Command, environ)
		require.Equal(t, "nats://nats:4222", s.NATS, role)
		require.Equal(t, "0.0.0.0:8080", s.Listen, role)
		require.Greater(t, time.Duration(*service.StopGracePeriod), s.DrainDelay+s.Grace, "%s: killed before its grace is over", role)
		require.True(t, service.ReadOnly, role)
		require.Equal(t, []string{"ALL"}, service.CapDrop, role)
	}
}

// serveSettings reads the arguments and the environment of millrace as millrace does.
func serveSettings(t *testing.T, args, environ []string) *config.Serve {
	t.Helper()
	require.Equal(t, "serve", args[0])
	var s config.Serve
	root := &cobra.Command{Use: "millrace"}
	root.PersistentFlags().String("log-format", "auto", "") // of every command
	serve := &cobra.Command{Use: "serve", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return errors.Join(config.Bind(cmd, environ), s.Validate())
	}}
	s.Register(serve.Flags())
	root.AddCommand(serve)
	root.SetArgs(args)
	require.NoError(t, root.Execute())
	return &s
}

// stage is a FROM of the Dockerfile with the instructions up to the next, after those of the stage that it begins with.
type stage struct {
	name         string
	instructions map[string][]string // by instruction, without it
}

func (s stage) last(instruction string) string {
	list := s.instructions[instruction]
	return list[len(list)-1]
}

func dockerfile(t *testing.T) []stage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	var stages []stage
	for line := range strings.Lines(joined) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case instruction == "" || strings.HasPrefix(instruction, "#"):
		case instruction == "FROM":
			from, name, ok := strings.Cut(rest, " AS ")
			require.True(t, ok, "FROM %s: no name", rest)
			instructions := map[string][]string{}
			for _, s := range stages {
				if s.name == from {
					for of, list := range s.instructions {
						instructions[of] = slices.Clone(list)
					}
				}
			}
			stages = append(stages, stage{name, instructions})
		default:
			require.NotEmpty(t, stages, "%s before FROM", instruction)
			in := stages[len(stages)-1].instructions
			in[instruction] = append(in[instruction], rest)
		}
	}
	return stages
}

func TestComposeBuildsStagesOfTheDockerfile(t *testing.T) {
	stages := dockerfile(t)
	for name, service := range project(t, "load", "gpu").Services {
		if service.Build == nil {
			require.NotEmpty(t, service.Image, name)
			continue
		}
		require.True(t, slices.ContainsFunc(stages, func(s stage) bool { return s.name == service.Build.Target }),
			"%s: no stage %s", name, service.Build.Target)
	}
}

func TestImagesRunAsAnOrdinaryUser(t *testing.T) {
	images := 0
	for _, s := range dockerfile(t) {
		if slices.Contains([]string{"millrace", "millrace-gpu", "k6"}, s.name) {
			require.Equal(t, "10001:10001", s.last("USER"), s.name)
			images++
		}
	}
	require.Equal(t, 3, images)
}

func TestImageStartsMillraceWithFlagsThatItTakes(t *testing.T) {
	stages := dockerfile(t)
	last := stages[len(stages)-1]
	require.Equal(t, "millrace", last.name, "the default target")
	var args []string
	require.NoError(t, json.Unmarshal([]byte(last.instructions["CMD"][0]), &args))
	s := serveSettings(t, args, nil)
	require.Equal(t, []string{s.DataDir}, last.instructions["VOLUME"])
	require.Contains(t, last.instructions["HEALTHCHECK"][0], readyCheck)
}

// The library of the backend lies where millrace searches for it, and the runtime where the library does.
func TestTheImageForGPUsComputesOnThem(t *testing.T) {
	stages := dockerfile(t)
	gpu := stages[slices.IndexFunc(stages, func(s stage) bool { return s.name == "millrace-gpu" })]
	var environ []string
	for _, list := range gpu.instructions["ENV"] {
		environ = append(environ, strings.Fields(list)...)
	}
	var args []string
	require.NoError(t, json.Unmarshal([]byte(gpu.last("CMD")), &args))
	require.Equal(t, "sycl", serveSettings(t, args, environ).Backend)
	server := stages[len(stages)-1]
	// begun from another system's image
	for _, instruction := range []string{"USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"} {
		require.Equal(t, server.last(instruction), gpu.last(instruction))
	}
	copies := strings.Join(gpu.instructions["COPY"], "\n")
	for _, to := range []string{"/usr/local/bin/millrace", "/usr/local/lib/libmillrace_sycl.so", "/usr/local/sycl/lib"} {
		require.Regexp(t, `(?m) `+to+`$`, copies)
	}
	compute := project(t, "gpu").Services["compute-gpu"]
	require.Equal(t, gpu.name, compute.Build.Target)
	require.Equal(t, "/dev/dri", compute.Devices[0].Source)
	require.Equal(t, []string{"992"}, compute.GroupAdd)
}

// What a stage copies from this folder must be in it, and not ignored.
// The user of the image has no home: what millrace pull and the caches write must be in the volume.
func TestImageKeepsModelsInItsVolume(t *testing.T) {
	stages := dockerfile(t)
	last := stages[len(stages)-1]
	volume := last.instructions["VOLUME"][0]
	for _, name := range []string{"XDG_DATA_HOME", "XDG_CACHE_HOME"} {
		require.Regexp(t, name+"="+regexp.QuoteMeta(volume)+`(/|\s|$)`, strings.Join(last.instructions["ENV"], " "))
	}
}

func TestDockerfileCopiesWhatIsThere(t *testing.T) {
	ignored, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	require.NoError(t, err)
	from := regexp.MustCompile(`^--from=build\S* /(src/)?`)
	// by the stages before
	built := []string{"bin/millrace", "build/THIRD_PARTY_NOTICES", "build/lib/libmillrace_sycl.so", "build/sycl/lib", "licenses", "k6"}
	copied := 0
	for _, s := range dockerfile(t) {
		for _, args := range s.instructions["COPY"] {
			if strings.HasPrefix(args, "--from=") && !from.MatchString(args) {
				continue
			}
			words := strings.Fields(from.ReplaceAllString(args, ""))
			for _, source := range words[:len(words)-1] {
				if slices.Contains(built, source) {
					continue
				}
				matches, err := filepath.Glob(filepath.Join(root, source))
				require.NoError(t, err)
				require.NotEmpty(t, matches, "%s: COPY %s", s.name, source)
				require.NotContains(t, strings.Fields(string(ignored)), source)
				copied++
			}
		}
	}
	require.Greater(t, copied, 4)
}

func TestK6FindsItsServersByTheirNames(t *testing.T) {
	services := project(t, "load").Services
	script, err := os.ReadFile(filepath.Join(root, "benchmarks", "k6", "target.js"))
	require.NoError(t, err)
	for name, value := range services["k6"].Environment {
		require.Contains(t, string(script), "__ENV."+name)
		target, err := url.Parse(*value)
		require.NoError(t, err)
		require.Contains(t, services, target.Hostname(), name)
	}
	require.Len(t, services["k6"].Environment, 2)
}
