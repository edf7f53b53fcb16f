package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/operator"
)

// mappersPath is the path of the list of mappers, relative to the path of jobs in the jobs API.
const mappersPath = "mappers"

// mappers reads the service's list of mappers. If kinds is true, the list also has the kinds of the
// database.
func (s *service) mappers(ctx context.Context, kinds bool) (*operator.MapperList, error) {
	var parameters url.Values
	if kinds {
		parameters = url.Values{"kinds": {"true"}}
	}
	list := new(operator.MapperList)
	err := s.call(ctx, http.MethodGet, mappersPath, parameters, nil, list)
	// an older service takes the word for the ID of a job, which may exist
	if err == nil && list.Mappers == nil || isMissing(err) {
		err = s.unknown("the list of mappers", "")
	}
	return list, err
}

func newMappers() *cobra.Command {
	var s service
	c := &cobra.Command{
		Use: "mappers [MAPPER]", Short: "List the mappers of the service, with their parameters",
		Long: `Lists the mappers whose jobs you can start, and what they do. Optional parameters are in brackets.
"scattermap start" asks for other numbers and times. With MAPPER, the command shows this mapper, and
the types of its parameters.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(errors.New("mappers: name one mapper, or none to list all"))
			}
			return nil
		},
	}
	s.define(c.Flags())
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if s.straight.queue != "" {
			return usageError(errors.New("mappers: with --straight there is no service, and only a service knows its " +
				"mappers: leave --straight out"))
		}
		list, err := s.mappers(c.Context(), false)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return listMappers(c, format, list.Mappers)
		}
		i := slices.IndexFunc(list.Mappers, func(m operator.Mapper) bool { return m.Name == args[0] })
		if i < 0 {
			return fmt.Errorf("the service at %s has no mapper %.110q; \"scattermap mappers\" lists them", s.address,
				args[0])
		}
		return describeMapper(c, format, list.Mappers[i])
	}
	return c
}

// listMappers prints a table of mappers, or the list in another format.
func listMappers(c *cobra.Command, format *output, all []operator.Mapper) error {
	if *format != table {
		return format.write(c.OutOrStdout(), all)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(c.OutOrStdout(), "The service has no mappers whose jobs you can start.")
		return err
	}
	lines := [][]string{{"MAPPER", "DOES", "PARAMETERS", "DESCRIPTION"}}
	for _, m := range all {
		var params []string
		for _, p := range m.Params {
			params = append(params, bracketed(p))
		}
		does := m.Mode
		if m.Destroys {
			does += ", destroys"
		}
		lines = append(lines, []string{operator.Line(m.Name, 100), operator.Line(does, 40),
			operator.Line(strings.Join(params, " "), 300), operator.Line(m.Description, 300)})
	}
	return rows(c.OutOrStdout(), lines...)
}

// bracketed returns the name of a parameter, in brackets if it is optional. Parameters that are no
// object have no names, but a type.
func bracketed(p operator.MapperParam) string {
	switch {
	case p.Name == "":
		return p.Type
	case p.Optional:
		return "[" + p.Name + "]"
	}
	return p.Name
}

// describeMapper prints one mapper, with a line for each of its parameters.
func describeMapper(c *cobra.Command, format *output, m operator.Mapper) error {
	if *format != table {
		return format.write(c.OutOrStdout(), m)
	}
	lines := [][]string{{"Mapper:", operator.Line(m.Name, 100)}, {"Does:", operator.Line(m.Does(), 100)}}
	if m.Description != "" {
		lines = append(lines, []string{"Description:", operator.Line(m.Description, 1000)})
	}
	if len(m.Params) == 0 {
		lines = append(lines, []string{"Parameters:", "none"})
	}
	for _, p := range m.Params {
		text := p.Type
		if p.Name != "" {
			text = p.Name + " (" + p.Type + ")"
		}
		if p.Optional {
			text += ", optional"
		}
		lines = append(lines, []string{"Parameter:", operator.Line(text, 300)})
	}
	return facts(c.OutOrStdout(), lines...)
}
