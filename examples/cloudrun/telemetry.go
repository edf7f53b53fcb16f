package main

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// startTelemetry has metrics and traces exported by OTLP over HTTP, if the environment says where to; the exporters read the
// other variables of OpenTelemetry themselves, such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER. What it returns exports what is
// left, and ends it.
func startTelemetry(ctx context.Context, c config) (end func(context.Context) error, err error) {
	if c.otlp == "" {
		return func(context.Context) error { return nil }, nil
	}
	about, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", c.serviceName), attribute.String("service.version", c.revision), attribute.String("service.instance.id", c.instance)))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	spans, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.otlp+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: traces: %w", err)
	}
	numbers, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(c.otlp+"/v1/metrics"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: metrics: %w", err)
	}
	tracers := trace.NewTracerProvider(trace.WithResource(about), trace.WithBatcher(spans))
	meters := metric.NewMeterProvider(metric.WithResource(about), metric.WithReader(metric.NewPeriodicReader(numbers)))
	otel.SetTracerProvider(tracers)
	otel.SetMeterProvider(meters)
	return func(ctx context.Context) error { return errors.Join(tracers.Shutdown(ctx), meters.Shutdown(ctx)) }, nil
}
