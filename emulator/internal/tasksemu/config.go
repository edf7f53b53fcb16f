package tasksemu

import (
	"math"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// Defaults and limits of a queue's settings, from the documentation of Cloud Tasks.
const (
	maxDispatchesPerSecond  = 500
	defaultConcurrent       = 1000
	maxConcurrentDispatches = 5000
	defaultMaxAttempts      = 100
	defaultMinBackoff       = 100 * time.Millisecond
	defaultMaxBackoff       = time.Hour
	defaultMaxDoublings     = 16
)

// completeQueue returns a queue's settings, with defaults for those that are unset. It returns an
// error for an invalid setting. If unlimited is set, a queue may dispatch more than 500 tasks a
// second.
func completeQueue(config *pb.Queue, unlimited bool) (*pb.Queue, error) {
	config = proto.CloneOf(config)
	if config.RateLimits == nil {
		config.RateLimits = new(pb.RateLimits)
	}
	limits := config.RateLimits
	setDefault(&limits.MaxDispatchesPerSecond, maxDispatchesPerSecond)
	setDefault(&limits.MaxConcurrentDispatches, defaultConcurrent)
	fastest := float64(maxDispatchesPerSecond)
	if unlimited {
		fastest = math.MaxInt32 // the largest rate whose burst fits into an int32
	}
	switch {
	case limits.MaxDispatchesPerSecond < 0:
		return nil, invalid("RateLimits.maxDispatchesPerSecond cannot be negative.")
	case !(limits.MaxDispatchesPerSecond <= fastest): // also refuses NaN
		return nil, invalid("RateLimits.maxDispatchesPerSecond must be less than or equal to %v.", fastest)
	case limits.MaxConcurrentDispatches < 0:
		return nil, invalid("RateLimits.maxConcurrentDispatches cannot be negative.")
	case limits.MaxConcurrentDispatches > maxConcurrentDispatches:
		return nil, invalid("RateLimits.maxConcurrentDispatches must be less than or equal to %d.",
			maxConcurrentDispatches)
	}
	// Clients can't set the burst. Production has shown 10 for rates of 0.25 and 1, and 100 for
	// 500.
	limits.MaxBurstSize = int32(max(10, limits.MaxDispatchesPerSecond/5))
	var err error
	if config.RetryConfig, err = completeRetries(config.RetryConfig); err != nil {
		return nil, err
	}
	if err := checkTarget(config.HttpTarget); err != nil {
		return nil, err
	}
	if ratio := config.StackdriverLoggingConfig.GetSamplingRatio(); !(ratio >= 0 && ratio <= 1) {
		return nil, invalid("Queue.stackdriver_logging_config.sampling_ratio has to be in [0, 1], it is %v", ratio)
	}
	return config, nil
}

// completeRetries returns the retry settings of a queue or a task, with defaults for those that are
// unset. It returns an error if a setting is invalid. Durations are used to the nanosecond. The
// documentation says that production cuts them to seconds, but its default of 100 ms contradicts
// that.
func completeRetries(c *pb.RetryConfig) (*pb.RetryConfig, error) {
	if c == nil {
		c = new(pb.RetryConfig)
	}
	c = proto.CloneOf(c)
	for name, d := range map[string]*durationpb.Duration{
		"maxRetryDuration": c.MaxRetryDuration, "minBackoff": c.MinBackoff, "maxBackoff": c.MaxBackoff,
	} {
		if d == nil {
			continue
		}
		if err := d.CheckValid(); err != nil {
			return nil, invalid("RetryConfig.%s: %v", name, err)
		}
		if d.AsDuration() < 0 {
			return nil, invalid("RetryConfig.%s cannot be negative.", name)
		}
	}
	setDefault(&c.MaxAttempts, defaultMaxAttempts)
	setDefault(&c.MaxDoublings, defaultMaxDoublings)
	if c.MinBackoff == nil {
		c.MinBackoff = durationpb.New(defaultMinBackoff)
	}
	if c.MaxBackoff == nil {
		c.MaxBackoff = durationpb.New(max(defaultMaxBackoff, c.MinBackoff.AsDuration()))
	}
	switch {
	case c.MaxAttempts < -1:
		return nil, invalid("RetryConfig.maxAttempts must be greater or equal to -1.")
	case c.MaxDoublings < 0:
		return nil, invalid("RetryConfig.maxDoublings cannot be negative.")
	case c.MaxBackoff.AsDuration() < c.MinBackoff.AsDuration():
		return nil, invalid("RetryConfig.minBackoff must be less than or equal to RetryConfig.maxBackoff.")
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// outputOnly has the fields of a queue that an update never changes, even if its mask names them.
var outputOnly = map[protoreflect.Name]bool{"name": true, "state": true, "purge_time": true}

// updateQueue returns a queue's settings after an update. It takes the fields that the mask names
// from change, or all fields if the mask is empty.
func updateQueue(old, change *pb.Queue, mask *fieldmaskpb.FieldMask) (*pb.Queue, error) {
	updated := proto.CloneOf(old)
	paths := mask.GetPaths()
	if len(paths) == 0 {
		fields := updated.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			paths = append(paths, string(fields.Get(i).Name()))
		}
	}
	for _, path := range paths {
		if _, err := fieldmaskpb.New(updated, path); err != nil {
			return nil, invalid("update_mask: Queue has no field %q", path)
		}
		copyField(updated.ProtoReflect(), change.ProtoReflect(), path)
	}
	return updated, nil
}

// copyField copies one field, given by its path, from one message to another of the same type. If
// the field is unset in the message from, copyField unsets it in the message to. It ignores the
// fields of a queue in outputOnly.
func copyField(to, from protoreflect.Message, path string) {
	name, rest := protoreflect.Name(path), ""
	for i := range path {
		if path[i] == '.' {
			name, rest = protoreflect.Name(path[:i]), path[i+1:]
			break
		}
	}
	field := to.Descriptor().Fields().ByName(name)
	switch {
	case to.Descriptor().Name() == "Queue" && outputOnly[name]:
	case rest != "":
		copyField(to.Mutable(field).Message(), from.Get(field).Message(), rest)
	case from.Has(field):
		to.Set(field, from.Get(field))
	default:
		to.Clear(field)
	}
}
