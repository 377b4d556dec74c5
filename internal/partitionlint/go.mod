module github.com/softcrum/carril/internal/partitionlint

go 1.26.0

require (
	github.com/pganalyze/pg_query_go/v6 v6.2.5
	golang.org/x/tools v0.52.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)
