package deploy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/millrace/millrace/metrics"
)

// series are the names that a process shows, with the labels of each. `up` is
// Prometheus' own.
func series(t *testing.T) map[string][]string {
	t.Helper()
	m := metrics.New(metrics.Build{})
	model := m.Model("tiny")
	model.Rejected("queue_full")
	model.Step(time.Millisecond, time.Microsecond, 1, 1)
	r := model.Queued(time.Unix(0, 0), 1)
	r.Started(time.Unix(0, 0), 1)
	r.Finished(time.Unix(1, 0), "stop")
	m.Stage("tokenize")
	m.Cluster().Moved("dead")
	m.Cluster().Dropped("gone", 1)
	m.Cluster().Nodes(map[string]int{"compute": 1}, 0)
	families, err := m.Registry().Gather()
	require.NoError(t, err)
	names := map[string][]string{}
	for _, f := range families {
		labels := []string{"job", "instance", "role"} // of deploy/prometheus/prometheus.yml
		for _, pair := range f.Metric[0].Label {
			labels = append(labels, pair.GetName())
		}
		names[f.GetName()] = labels
		if f.Metric[0].Histogram != nil {
			names[f.GetName()+"_bucket"] = append([]string{"le"}, labels...)
			names[f.GetName()+"_sum"], names[f.GetName()+"_count"] = labels, labels
		}
	}
	names["up"] = names["go_goroutines"]
	return names
}

var (
	quoted    = regexp.MustCompile(`"[^"]*"`)
	selector  = regexp.MustCompile(`([a-z][a-z0-9_]*)(\{[^}]*\})?`)
	number    = regexp.MustCompile(`\b[0-9.]+\b`)
	labelName = regexp.MustCompile(`[a-z_]+`)
	grouping  = regexp.MustCompile(`\b(by|ignoring|on) ?\(([^)]*)\)`)
	functions = []string{"sum", "max", "rate", "histogram_quantile", "by", "ignoring", "on", "group_left", "or", "vector", "m", "s"}
)

// requireSeries checks that every series that an expression names, and every
// label, is there.
func requireSeries(t *testing.T, expression string) {
	t.Helper()
	known := series(t)
	require.Equal(t, strings.Count(expression, "("), strings.Count(expression, ")"), expression)
	rest := quoted.ReplaceAllString(strings.ReplaceAll(expression, "[$__rate_interval]", ""), "")
	rest = number.ReplaceAllString(rest, "")
	var grouped []string
	for _, g := range grouping.FindAllStringSubmatch(rest, -1) {
		grouped = append(grouped, labelName.FindAllString(g[2], -1)...)
	}
	rest = grouping.ReplaceAllString(rest, "")
	found := 0
	var labels []string
	for _, s := range selector.FindAllStringSubmatch(rest, -1) {
		if slices.Contains(functions, s[1]) {
			continue
		}
		found++
		require.NotEmpty(t, known[s[1]], "%s: no series %s", expression, s[1])
		for _, label := range labelName.FindAllString(s[2], -1) {
			require.Contains(t, known[s[1]], label, expression)
		}
		labels = append(labels, known[s[1]]...)
	}
	require.Positive(t, found, expression)
	for _, label := range grouped {
		require.Contains(t, labels, label, expression)
	}
}

func TestTheDashboardShowsSeriesThatExist(t *testing.T) {
	text, err := os.ReadFile("grafana/dashboards/millrace.json")
	require.NoError(t, err)
	var dashboard struct {
		UID    string `json:"uid"`
		Panels []struct {
			Title      string                  `json:"title"`
			Datasource struct{ UID string }    `json:"datasource"`
			Targets    []struct{ Expr string } `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	for _, p := range dashboard.Panels {
		require.Equal(t, "prometheus", p.Datasource.UID, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			requireSeries(t, target.Expr)
		}
	}
}

func TestPrometheusScrapesEveryRole(t *testing.T) {
	text, err := os.ReadFile("prometheus/prometheus.yml")
	require.NoError(t, err)
	var p struct {
		Scrape []struct {
			Job string `json:"job_name"`
			DNS []struct {
				Names []string `json:"names"`
				Type  string   `json:"type"`
				Port  int      `json:"port"`
			} `json:"dns_sd_configs"`
		} `json:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal(text, &p))
	require.Equal(t, "millrace", p.Scrape[0].Job, "the dashboard queries this job")
	require.ElementsMatch(t, roles, p.Scrape[0].DNS[0].Names)
	require.Equal(t, 8080, p.Scrape[0].DNS[0].Port)
}

func TestGrafanaReadsWhatIsProvisioned(t *testing.T) {
	services := project(t).Services
	targets := map[string]string{}
	for _, v := range slices.Concat(services["grafana"].Volumes, services["prometheus"].Volumes) {
		targets[v.Target] = v.Source
		if v.Type == "bind" {
			require.DirExists(t, v.Source)
		}
	}
	var provider struct {
		Providers []struct {
			Options struct{ Path string } `json:"options"`
		} `json:"providers"`
	}
	text, err := os.ReadFile("grafana/provisioning/dashboards/millrace.yml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &provider))
	require.Contains(t, targets, provider.Providers[0].Options.Path)
	home := *services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	require.Equal(t, provider.Providers[0].Options.Path+"/millrace.json", home)
}
