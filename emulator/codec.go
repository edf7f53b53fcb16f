package emulator

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// orderedMaps is gRPC's codec for protobuf, except that it writes the entries of maps in the order
// of their keys. Clients of other languages show properties in the order in which they arrive.
type orderedMaps struct{ encoding.CodecV2 }

func (orderedMaps) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(proto.Message)
	pool := mem.DefaultBufferPool()
	buffer := pool.Get(proto.Size(m))
	wire, err := proto.MarshalOptions{Deterministic: true, UseCachedSize: true}.MarshalAppend((*buffer)[:0], m)
	if err != nil {
		pool.Put(buffer)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(&wire, pool)}, nil
}

// withOrderedMaps makes a server use [orderedMaps].
func withOrderedMaps() grpc.ServerOption {
	return grpc.ForceServerCodecV2(orderedMaps{encoding.GetCodecV2("proto")})
}
