// Package dial has client options for connections to emulators.
package dial

import (
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scattermap/scattermap/internal/intercept"
)

// Insecure returns client options for a connection to an endpoint without encryption and without an
// account.
func Insecure(endpoint string) []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint(endpoint),
		option.WithoutAuthentication(),
		option.WithTelemetryDisabled(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

// Versions returns the client option that [mapper.ClientOption] returns. With it, a client receives
// the versions of entities.
func Versions() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept.Unary))
}
