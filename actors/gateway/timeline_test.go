package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestAGatewayForgetsTheOldestRequestsThatHaveEnded(t *testing.T) {
	var h history
	records := []*record{}
	for i := range keptRequests + 3 {
		c := h.begin(&api.Request{ID: fmt.Sprint(i)})
		records = append(records, c)
		if i%2 == 1 {
			c.note(func(l *Timeline) { l.End = time.Unix(1, 0) })
		}
	}
	list := h.last(1000)
	require.Len(t, list, keptRequests)
	require.Equal(t, []string{"0", "2", "4", "6", "7", "8"}, ids(list[:6]))
	records[0].generated.Add(5)
	require.Equal(t, 5, h.last(1000)[0].Generated)
	require.Equal(t, []string{"65", "66"}, ids(h.last(2)))
}

func TestAGatewayKeepsEveryRequestThatRuns(t *testing.T) {
	var h history
	for i := range 2 * keptRequests {
		h.begin(&api.Request{ID: fmt.Sprint(i)})
	}
	require.Len(t, h.last(1000), 2*keptRequests)
}

func ids(list []Timeline) (names []string) {
	for _, l := range list {
		names = append(names, l.ID)
	}
	return names
}
