package resend

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/softcrum/carril/dispatcher/provider"
)

type accepted struct {
	ID string `json:"id"`
}

type batchAnswer struct {
	Data   *[]accepted `json:"data"`
	Errors []itemError `json:"errors"`
}

type itemError struct {
	Index   *int   `json:"index"`
	Message string `json:"message"`
}

var errNotJSON = errors.New("the answer is not the JSON that was expected")

// readItems gives one item per message of the request, in its order, or an error
// where the answer does not account for each of them.
func readItems(body []byte, f provider.Frozen) ([]provider.Item, error) {
	if f.Endpoint == EndpointSingle {
		return readSingle(body)
	}
	var ans batchAnswer
	if err := json.Unmarshal(body, &ans); err != nil {
		return nil, errNotJSON
	}
	if ans.Data == nil {
		return nil, errors.New("the answer has no data")
	}
	return mapBatch(*ans.Data, ans.Errors, f.Count)
}

func readSingle(body []byte) ([]provider.Item, error) {
	var ans accepted
	if err := json.Unmarshal(body, &ans); err != nil {
		return nil, errNotJSON
	}
	if ans.ID == "" {
		return nil, errors.New("the answer has no id")
	}
	return []provider.Item{{ProviderMessageID: ans.ID}}, nil
}

// mapBatch puts a permissive batch's answer back in the request's order: data
// holds the accepted messages only, so a position in it is a position in the
// request only up to the first refusal.
func mapBatch(data []accepted, refused []itemError, count int) ([]provider.Item, error) {
	items := make([]provider.Item, count)
	distinct := 0
	for _, e := range refused {
		if e.Index == nil || *e.Index < 0 || *e.Index >= count {
			return nil, errors.New("the answer refuses a message that was not sent")
		}
		if items[*e.Index].Err != nil {
			continue // a second fault of the same message
		}
		items[*e.Index].Err = refusal("validation_error", e.Message)
		distinct++
	}
	if len(data)+distinct != count {
		return nil, fmt.Errorf("the answer accounts for %d of %d messages", len(data)+distinct, count)
	}
	next := 0
	for i := range items {
		if items[i].Err != nil {
			continue
		}
		if data[next].ID == "" {
			return nil, errors.New("the answer has a message without an id")
		}
		items[i].ProviderMessageID = data[next].ID
		next++
	}
	return items, nil
}
