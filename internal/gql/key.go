package gql

import (
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// key reads the text between the parentheses of a KEY literal, and returns the key.
func (p *parser) key() (*pb.Value, error) {
	partition, err := p.keyPartition()
	if err != nil {
		return nil, err
	}
	k := &pb.Key{PartitionId: partition}
	for {
		element, err := p.pathElement()
		if err != nil {
			return nil, err
		}
		k.Path = append(k.Path, element)
		if !p.accept(",") {
			return &pb.Value{ValueType: &pb.Value_KeyValue{KeyValue: k}}, nil
		}
	}
}

// keyPartition reads the project, the database and the namespace at the start of a KEY literal, in
// this order. If one of them is given, the later ones get their defaults. So PROJECT('p') means the
// default namespace of p's default database, even if the query is in another one. The GQL reference
// does not mention DATABASE, but the emulators accept it.
func (p *parser) keyPartition() (*pb.PartitionId, error) {
	partition := &pb.PartitionId{
		ProjectId:   p.partition.GetProjectId(),
		DatabaseId:  p.partition.GetDatabaseId(),
		NamespaceId: p.partition.GetNamespaceId(),
	}
	dimensions := []string{"PROJECT", "DATABASE", "NAMESPACE"}
	for p.tok.kind == word && p.ahead.is("(") {
		at := p.advance()
		name := strings.ToUpper(at.text)
		for len(dimensions) > 0 && dimensions[0] != name {
			dimensions = dimensions[1:]
		}
		if len(dimensions) == 0 {
			return nil, p.errorAt(at,
				"expected a kind or, once each and in this order, PROJECT, DATABASE and NAMESPACE, got %s", at)
		}
		dimensions = dimensions[1:]
		p.advance()
		t, err := p.string("the name of a " + strings.ToLower(name))
		if err != nil {
			return nil, err
		}
		for _, sign := range []string{")", ","} {
			if err := p.expect(sign); err != nil {
				return nil, err
			}
		}
		switch name {
		case "PROJECT":
			partition = &pb.PartitionId{ProjectId: t.value}
		case "DATABASE":
			partition.DatabaseId, partition.NamespaceId = t.value, ""
		case "NAMESPACE":
			partition.NamespaceId = t.value
		}
	}
	return partition, nil
}

// pathElement reads one element of a key's path: a kind, and an ID or a name.
func (p *parser) pathElement() (*pb.Key_PathElement, error) {
	if p.tok.kind == str {
		return nil, p.errorAt(p.tok, "expected a kind, got the string %s: a kind has no quotes, or backquotes", p.tok)
	}
	kind, err := p.name("a kind")
	if err != nil {
		return nil, err
	}
	if err := p.expect(","); err != nil {
		return nil, err
	}
	element := &pb.Key_PathElement{Kind: kind}
	switch t := p.tok; t.kind {
	case integer:
		id, err := p.integer(t)
		if err != nil {
			return nil, err
		}
		if id == 0 {
			return nil, p.errorAt(t, "the id of a key is not 0")
		}
		element.IdType = &pb.Key_PathElement_Id{Id: id}
	case str:
		if t.value == "" {
			return nil, p.errorAt(t, "the name of a key is not empty")
		}
		element.IdType = &pb.Key_PathElement_Name{Name: t.value}
	default:
		return nil, p.expected("an id (an integer) or a name (a string)")
	}
	p.advance()
	return element, nil
}
