package terraform_test

import (
	"fmt"
	"strings"
)

// schemas are the arguments, blocks and computed attributes of the resources and data sources that the module uses, from the
// documentation of the google provider: a name with ! is required, one with = is computed, and a block has its own in braces.
var schemas = map[string]string{
	"google_project": `project_id number=`,
	"google_cloud_run_v2_service": `project name! location! ingress deletion_protection invoker_iam_disabled depends_on template!{
		service_account timeout max_instance_request_concurrency scaling{min_instance_count max_instance_count}
		containers!{
			name image! args depends_on ports{container_port} resources{limits cpu_idle startup_cpu_boost} env{name! value}
			startup_probe{period_seconds failure_threshold http_get{path port}} liveness_probe{period_seconds failure_threshold http_get{path port}}
			volume_mounts{name! mount_path!}
		}
		volumes{name! secret{secret! items{version path!}}}
	}`,
	"google_cloud_run_v2_service_iam_member": `project location name! role! member!`,
	"google_cloud_tasks_queue": `id= project location! name rate_limits{max_concurrent_dispatches max_dispatches_per_second}
		retry_config{max_attempts min_backoff max_backoff max_doublings max_retry_duration}`,
	"google_cloud_tasks_queue_iam_member": `project location name! role! member!`,
	"google_service_account":              `project account_id! display_name name= email= member=`,
	"google_project_iam_member":           `project! role! member!`,
	"google_service_account_iam_member":   `service_account_id! role! member!`,
	"google_cloud_scheduler_job": `project region name! description schedule time_zone attempt_deadline depends_on retry_config{retry_count}
		http_target{http_method uri! oidc_token{service_account_email! audience}}`,
	"google_firestore_field":                  `project database collection! field! ttl_config{}`,
	"google_secret_manager_secret":            `id= project secret_id! replication!{auto{}}`,
	"google_secret_manager_secret_version":    `secret! secret_data!`,
	"google_secret_manager_secret_iam_member": `project secret_id! role! member!`,
	"google_monitoring_alert_policy": `project display_name! combiner! notification_channels
		conditions!{
			display_name! condition_prometheus_query_language{query! duration evaluation_interval} condition_matched_log{filter!}
			condition_absent{filter duration! aggregations{alignment_period per_series_aligner}}
		}
		alert_strategy{notification_rate_limit{period}} documentation{content mime_type}`,
	"google_logging_metric":                  `project name! description filter! metric_descriptor{metric_kind! value_type!}`,
	"google_monitoring_dashboard":            `project dashboard_json!`,
	"google_monitoring_notification_channel": `project display_name type! labels name=`,
}

// metaArguments are those that every resource takes.
var metaArguments = []string{"for_each", "count", "depends_on", "lifecycle", "provider"}

// A schema is what a block takes.
type schema struct {
	attributes map[string]bool // whether they are required
	computed   map[string]bool
	blocks     map[string]*schema
	required   map[string]bool // of the blocks
}

// parseSchema parses one of the texts above.
func parseSchema(text string) (*schema, error) {
	text = strings.NewReplacer("{", " { ", "}", " } ").Replace(text)
	words := strings.Fields(text)
	s, rest, err := parseWords(words)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%q is left over", rest)
	}
	return s, err
}

func parseWords(words []string) (*schema, []string, error) {
	s := &schema{attributes: map[string]bool{}, computed: map[string]bool{}, blocks: map[string]*schema{}, required: map[string]bool{}}
	for len(words) > 0 && words[0] != "}" {
		name, required := strings.CutSuffix(words[0], "!")
		name, computed := strings.CutSuffix(name, "=")
		words = words[1:]
		switch {
		case len(words) > 0 && words[0] == "{":
			inner, rest, err := parseWords(words[1:])
			if err != nil || len(rest) == 0 {
				return nil, nil, fmt.Errorf("the block %s does not end: %w", name, err)
			}
			s.blocks[name], s.required[name], words = inner, required, rest[1:]
		case computed:
			s.computed[name] = true
		default:
			s.attributes[name] = required
		}
	}
	return s, words, nil
}
