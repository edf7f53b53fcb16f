package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"

	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// exported starts the service's telemetry with environment variables, exports a metric, and returns
// the attributes of the metric's resource.
func exported(t *testing.T, environment map[string]string) map[string]string {
	t.Helper()
	about := make(map[string]string)
	// in a subtest, because it sets environment variables
	t.Run("export", func(t *testing.T) { export(t, environment, about) })
	return about
}

func export(t *testing.T, environment, about map[string]string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-protobuf")
		if r.URL.Path != "/v1/metrics" && r.URL.Path != "/only/metrics" {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var request collector.ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &request); err != nil {
			t.Error(err)
		}
		for _, a := range request.ResourceMetrics[0].Resource.Attributes {
			about[a.Key] = a.Value.GetStringValue()
		}
	}))
	defer server.Close()
	for name, value := range map[string]string{
		"GOOGLE_CLOUD_PROJECT": "test", "TASKS_QUEUE": queue, "SERVICE_URL": "https://x.run.app", "AUTH": "off",
		"K_SERVICE": "credit", "K_REVISION": "credit-7", "OTEL_EXPORTER_OTLP_ENDPOINT": server.URL,
	} {
		t.Setenv(name, value)
	}
	for name, value := range environment {
		if value == "/only/metrics" {
			value = server.URL + value
		}
		t.Setenv(name, value)
	}
	c, err := configFrom(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	end, err := startTelemetry(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	n, err := otel.Meter("test").Int64Counter("n")
	if err != nil {
		t.Fatal(err)
	}
	n.Add(t.Context(), 1)
	if err := end(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestResource checks the service and the instance that metrics name. Each process must be another
// instance, although all containers have the same process IDs. OpenTelemetry's own variables must
// have precedence.
func TestResource(t *testing.T) {
	first, second := exported(t, nil), exported(t, nil)
	if first["service.name"] != "credit" || first["service.version"] != "credit-7" {
		t.Errorf("metrics are of %v", first)
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	if a, b := first["service.instance.id"], second["service.instance.id"]; a == b || !uuid.MatchString(a) ||
		!uuid.MatchString(b) {
		t.Errorf("two instances are %q and %q", a, b)
	}
	theirs := exported(t, map[string]string{
		"OTEL_SERVICE_NAME":                   "ledger",
		"OTEL_RESOURCE_ATTRIBUTES":            "service.version=9,service.instance.id=blue,team=money",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "/only/metrics",
	})
	for name, want := range map[string]string{"service.name": "ledger", "service.version": "9",
		"service.instance.id": "blue", "team": "money"} {
		if theirs[name] != want {
			t.Errorf("%s is %q, want %q as the environment says", name, theirs[name], want)
		}
	}
	for name, environment := range map[string]map[string]string{
		"disabled": {"OTEL_SDK_DISABLED": "true"}, "none": {"OTEL_METRICS_EXPORTER": "none"},
		"nowhere": {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
	} {
		if got := exported(t, environment); len(got) > 0 {
			t.Errorf("%s: exported by %v", name, got)
		}
	}
}
