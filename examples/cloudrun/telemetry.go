package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
)

// exports reports whether the service exports data of a kind: traces or metrics, the parameter
// what. It does so if the kind's own variable of OpenTelemetry has a collector's address, or else
// if the parameter collector has one. That is the address for all kinds of data. Other variables
// can switch the export off. The exporters read the address themselves.
func (e *environment) exports(what, collector string) bool {
	own := strings.ToUpper(what)
	endpoint := "OTEL_EXPORTER_OTLP_" + own + "_ENDPOINT"
	e.checkURL(endpoint, e.getenv(endpoint), func(*url.URL) bool { return true }, "an http(s) URL without a query")
	exporter := "OTEL_" + own + "_EXPORTER"
	if cmp.Or(e.getenv(endpoint), collector) == "" || e.getenv(exporter) == "none" ||
		strings.EqualFold(e.getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if v := e.getenv(exporter); v != "" && v != "otlp" {
		e.problem("%s is %q, it has to be otlp or none", exporter, v)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_" + own + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if v := e.getenv(name); v != "" {
			if v != "http/protobuf" {
				e.problem("%s is %q, it has to be http/protobuf", name, v)
			}
			break // the first variable that is set decides
		}
	}
	return true
}

// startTelemetry exports metrics and traces by OTLP over HTTP, if the environment names a URL.
// OpenTelemetry's own variables (OTEL_...) have precedence; the exporters read them.
// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES change the attributes of the service. The result
// end exports the remaining data and stops the export.
func startTelemetry(ctx context.Context, c config) (end func(context.Context) error, err error) {
	var ends []func(context.Context) error
	end = func(ctx context.Context) error {
		var failed []error
		for _, end := range ends {
			failed = append(failed, end(ctx))
		}
		return errors.Join(failed...)
	}
	if !c.traces && !c.metrics {
		return end, nil
	}
	// The instance's ID is random, because process IDs and host names are the same in many
	// containers. Later attributes override earlier ones.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithService(), resource.WithAttributes(
		semconv.ServiceName(c.serviceName), semconv.ServiceVersion(c.revision)), resource.WithFromEnv())
	if about == nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	if err != nil { // an error, such as a wrong OTEL_RESOURCE_ATTRIBUTES: the other attributes are valid
		otel.Handle(fmt.Errorf("telemetry: %w", err))
	}
	if c.traces {
		spans, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry: traces: %w", err)
		}
		tracers := trace.NewTracerProvider(trace.WithResource(about), trace.WithBatcher(spans))
		otel.SetTracerProvider(tracers)
		ends = append(ends, tracers.Shutdown)
	}
	if c.metrics {
		numbers, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("telemetry: metrics: %w", err), end(ctx))
		}
		meters := metric.NewMeterProvider(metric.WithResource(about),
			metric.WithReader(metric.NewPeriodicReader(numbers)))
		otel.SetMeterProvider(meters)
		ends = append(ends, meters.Shutdown)
	}
	return end, nil
}
