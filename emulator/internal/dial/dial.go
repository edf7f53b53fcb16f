// Package dial has the options of clients of emulators.
package dial

import (
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scattermap/scattermap/internal/intercept"
)

// Insecure returns the options of a client that connects to an endpoint without encryption and
// without an account.
func Insecure(endpoint string) []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint(endpoint),
		option.WithoutAuthentication(),
		option.WithTelemetryDisabled(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

// Versions returns [mapper.ClientOption].
func Versions() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept.Unary))
}
