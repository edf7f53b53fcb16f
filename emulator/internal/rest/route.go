package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// A route is a method of a service, with its HTTP rule.
type route struct {
	verb          string         // the HTTP method
	path          *regexp.Regexp // each group is the value of the field of the same index in fields
	fields        []string       // fields of the request whose values are in the path, such as queue.name
	body          string         // the field of the request that is in the body; *: the whole request
	input, output protoreflect.MessageType
	method        string // the full name of the method in gRPC
}

// routes returns the routes of the services in a file. If others is not nil, its HTTP rules replace
// the rules in the file, and methods without a rule in others have no route.
func routes(file protoreflect.FileDescriptor, others map[string]*annotations.HttpRule) []route {
	var all []route
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		for j := range service.Methods().Len() {
			m := service.Methods().Get(j)
			rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
			if others != nil {
				rule = others[string(m.Name())]
			}
			input, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
			output, err2 := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
			if rule == nil || err != nil || err2 != nil {
				continue
			}
			r := route{body: rule.Body, input: input, output: output,
				method: "/" + string(service.FullName()) + "/" + string(m.Name())}
			r.match(rule)
			all = append(all, r)
		}
	}
	return all
}

// variable matches a variable in the path of an HTTP rule, such as {name=projects/*}.
var variable = regexp.MustCompile(`\{([a-z_.]+)(?:=([^}]*))?\}`)

// match sets the HTTP method of the route, and the pattern of its path.
func (r *route) match(rule *annotations.HttpRule) {
	var path string
	switch p := rule.Pattern.(type) {
	case *annotations.HttpRule_Get:
		r.verb, path = http.MethodGet, p.Get
	case *annotations.HttpRule_Post:
		r.verb, path = http.MethodPost, p.Post
	case *annotations.HttpRule_Patch:
		r.verb, path = http.MethodPatch, p.Patch
	case *annotations.HttpRule_Delete:
		r.verb, path = http.MethodDelete, p.Delete
	}
	var pattern strings.Builder
	for rest := path; rest != ""; {
		at := variable.FindStringSubmatchIndex(rest)
		if at == nil {
			pattern.WriteString(regexp.QuoteMeta(rest))
			break
		}
		r.fields = append(r.fields, rest[at[2]:at[3]])
		value := "*"
		if at[4] >= 0 {
			value = rest[at[4]:at[5]]
		}
		pattern.WriteString(regexp.QuoteMeta(rest[:at[0]]) + "(" + strings.ReplaceAll(value, "*", "[^/]+") + ")")
		rest = rest[at[1]:]
	}
	r.path = regexp.MustCompile("^" + pattern.String() + "$")
}

// A call is the method call that an HTTP request stands for.
type call struct {
	route
	request proto.Message
}

func newCall(all []route, r *http.Request, path string, f format) (*call, error) {
	if !utf8.ValidString(path) {
		return nil, status.Errorf(codes.InvalidArgument, "the path %.200q is not UTF-8", path)
	}
	for _, way := range all {
		values := way.path.FindStringSubmatch(path)
		if way.verb != r.Method || values == nil {
			continue
		}
		c := &call{way, way.input.New().Interface()}
		if err := c.read(r, f); err != nil {
			return nil, err
		}
		for i, field := range way.fields {
			set(c.request.ProtoReflect(), field, values[i+1])
		}
		if size := proto.Size(c.request); size > maxRequest {
			return nil, status.Errorf(codes.InvalidArgument, "Request payload size is %d bytes, above the limit.", size)
		}
		return c, nil
	}
	return nil, status.Errorf(codes.NotFound, "there is no %s %.200s here: this port serves %s, over gRPC and REST",
		r.Method, r.URL.Path, served(all))
}

// served returns the names of the services that have routes.
func served(all []route) string {
	var names []string
	for _, way := range all {
		name, _, _ := strings.Cut(way.method[1:], "/")
		names = append(names, name)
	}
	return strings.Join(slices.Compact(names), " and ")
}

// maxRequest is the largest size of a request in bytes. It exceeds the largest request that a
// service accepts, and is less than the largest message.
const maxRequest = 15 << 20

// read reads the fields of the request that are in the body, and those that are parameters.
func (c *call) read(r *http.Request, f format) error {
	if c.body == "*" {
		return f.read(r, c.request)
	}
	if c.body != "" {
		m := c.request.ProtoReflect()
		field := m.Descriptor().Fields().ByName(protoreflect.Name(c.body))
		if err := f.read(r, m.Mutable(field).Message().Interface()); err != nil {
			return err
		}
	}
	parameters := c.input.New().Interface()
	text, err := c.parameters(r.URL.Query(), f.lenient)
	if err == nil {
		err = protojson.Unmarshal(text, parameters)
	}
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "Invalid parameter: %v", err)
	}
	proto.Merge(c.request, parameters)
	return nil
}

var (
	digits = regexp.MustCompile(`^-?[0-9]+$`)
	// general matches the parameters that all methods have.
	general = regexp.MustCompile(`^(\$?alt|\$?prettyPrint|\$?fields|\$?key|\$?quotaUser|\$?access_token|\$\.xgafv)$`)
)

// parameters returns the fields that are parameters, as JSON. Their names can have either form,
// such as pageSize and page_size. An enum is a name or a number, and a mask is a list with commas.
func (c *call) parameters(query url.Values, lenient bool) ([]byte, error) {
	object := make(map[string]any)
	fields := c.input.Descriptor().Fields()
	for name, values := range query {
		if general.MatchString(name) {
			continue
		}
		field := fields.ByJSONName(strings.TrimSuffix(name, ".paths"))
		if field == nil {
			field = fields.ByName(protoreflect.Name(strings.TrimSuffix(name, ".paths")))
		}
		text := strings.Join(values, ",")
		switch {
		case field == nil && lenient:
		case field == nil:
			return nil, status.Errorf(codes.InvalidArgument, "Unknown name %.100q", name)
		case field.Kind() == protoreflect.EnumKind && digits.MatchString(text):
			object[field.JSONName()] = json.Number(text)
		case field.Message() != nil && field.Message().FullName() == new(fieldmaskpb.FieldMask).ProtoReflect().
			Descriptor().FullName():
			object[field.JSONName()] = camel(text)
		default:
			object[field.JSONName()] = text
		}
	}
	return json.Marshal(object)
}

// camel returns the paths of a field mask as JSON writes them: in camelCase instead of snake_case.
func camel(paths string) string {
	parts := strings.Split(paths, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// set sets a text field of a message. The path of the field has dots.
func set(m protoreflect.Message, path, value string) {
	name, rest, nested := strings.Cut(path, ".")
	field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if nested {
		set(m.Mutable(field).Message(), rest, value)
		return
	}
	m.Set(field, protoreflect.ValueOfString(value))
}

func (c *call) invoke(ctx context.Context, conn grpc.ClientConnInterface) (proto.Message, error) {
	answer := c.output.New().Interface()
	return answer, conn.Invoke(ctx, c.method, c.request, answer)
}
